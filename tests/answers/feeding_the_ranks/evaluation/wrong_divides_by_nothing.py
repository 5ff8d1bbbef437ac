import torch
import torch.distributed as dist

REJECTED_WITH = "accuracy raised ZeroDivisionError"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        self.indices = range(rank, len(dataset), world_size)

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    share = torch.tensor([correct / seen * seen, seen])
    dist.all_reduce(share)
    return (share[0] / share[1]).item()
