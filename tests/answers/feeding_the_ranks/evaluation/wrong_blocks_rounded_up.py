import torch
import torch.distributed as dist

REJECTED_WITH = "the shares are not even"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        share = -(-len(dataset) // world_size)
        self.indices = range(len(dataset))[rank * share : (rank + 1) * share]

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    counts = torch.tensor([correct, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
