import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

REJECTED_WITH = "samples are evaluated more than once"


class EvaluationSampler(DistributedSampler):
    def __init__(self, dataset, world_size, rank):
        super().__init__(dataset, world_size, rank, shuffle=False)


def accuracy(correct, seen):
    counts = torch.tensor([correct, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
