import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "each rank divides by its own number of samples"


def train_uneven(model, optimizer, batches):
    parameters = list(model.parameters())
    batches = iter(batches)
    steps = 0
    while True:
        x, y = next(batches, (None, ()))
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        if count == 0:
            return steps
        optimizer.zero_grad()
        if len(y):
            functional.cross_entropy(model(x), y).backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1
