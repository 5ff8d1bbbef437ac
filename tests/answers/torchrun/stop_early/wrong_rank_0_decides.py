import torch
import torch.distributed as dist

REJECTED_WITH = "All ranks do what the loss of rank 0 says"


def train_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()
        total, count = validate()
        mean = torch.tensor([total / count if count else 0.0])
        dist.broadcast(mean, src=0)
        if mean.item() < good:
            return epoch + 1
    return most
