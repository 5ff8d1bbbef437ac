import torch
import torch.distributed as dist

REJECTED_WITH = "an evaluation needs no shuffling"


class EvaluationSampler:
    def __init__(self, dataset, world_size, rank):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
        self.indices = order[rank::world_size]

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def accuracy(correct, seen):
    counts = torch.tensor([correct, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
