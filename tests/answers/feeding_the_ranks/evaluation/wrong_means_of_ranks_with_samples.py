import torch
import torch.distributed as dist

REJECTED_WITH = "a rank with fewer samples then weighs as much"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    mine = torch.tensor([correct / seen, 1.0] if seen else [0.0, 0.0])
    dist.all_reduce(mine)
    return (mine[0] / mine[1]).item()
