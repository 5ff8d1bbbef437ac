import torch
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
    right, count = torch.tensor(correct), torch.tensor(seen)
    dist.all_reduce(right)
    dist.all_reduce(count)
    return (right / count).item()
