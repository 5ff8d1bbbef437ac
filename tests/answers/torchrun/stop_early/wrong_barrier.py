import torch.distributed as dist

REJECTED_WITH = "do not stop in the same epoch"


def train_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()
        total, count = validate()
        dist.barrier()
        if count and total / count < good:
            return epoch + 1
    return most
