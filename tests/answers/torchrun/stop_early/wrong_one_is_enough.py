import torch
import torch.distributed as dist

REJECTED_WITH = "as soon as the loss of one rank"


def train_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()
        total, count = validate()
        mean = torch.tensor([total / count if count else 0.0])
        dist.all_reduce(mean, dist.ReduceOp.MIN)
        if mean.item() < good:
            return epoch + 1
    return most
