import torch.distributed as dist

REJECTED_WITH = "two numbers need one collective"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (correct, seen))
    return sum(pair[0] for pair in everyone) / sum(pair[1] for pair in everyone)
