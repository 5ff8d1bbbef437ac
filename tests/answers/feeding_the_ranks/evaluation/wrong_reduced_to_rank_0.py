import torch
import torch.distributed as dist

REJECTED_WITH = "not all ranks have the accuracy"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    counts = torch.tensor([correct, seen])
    dist.reduce(counts, 0)
    return (counts[0] / counts[1].clamp(min=1)).item()
