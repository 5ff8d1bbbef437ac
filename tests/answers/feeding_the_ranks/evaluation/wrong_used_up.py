import torch
import torch.distributed as dist

REJECTED_WITH = "__iter__ begins anew"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)
        self.iterator = iter(self.indices)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return self.iterator


def accuracy(correct, seen):
    counts = torch.tensor([correct, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
