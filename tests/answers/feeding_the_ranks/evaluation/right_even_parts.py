import torch
import torch.distributed as dist


class EvaluationSampler:
    """Even parts, as torch cuts them."""

    def __init__(self, dataset, world_size, rank):
        self.part = torch.arange(len(dataset)).tensor_split(world_size)[rank]

    def __len__(self):
        return self.part.numel()

    def __iter__(self):
        return iter(self.part.tolist())


def accuracy(correct, seen):
    mine = torch.tensor([[correct, seen - correct]], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.SUM)
    right, wrong = mine.flatten().tolist()
    return right / (right + wrong)
