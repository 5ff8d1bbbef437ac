import torch
import torch.distributed as dist


def train_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()
        total, count = validate()
        pair = torch.tensor([total, count], dtype=torch.float64)
        dist.reduce(pair, dst=0)
        stop = torch.tensor([pair[0] / pair[1] < good])
        dist.broadcast(stop, src=0)
        if stop:
            return epoch + 1
    return most
