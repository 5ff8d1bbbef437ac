REJECTED_WITH = "this is the rank's own accuracy"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    return correct / seen if seen else 0.0
