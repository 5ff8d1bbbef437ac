import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "the number of all samples so far"


def train_uneven(model, optimizer, batches):
    parameters = list(model.parameters())
    batches = iter(batches)
    steps = seen = 0
    while True:
        x, y = next(batches, (None, ()))
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        if count == 0:
            return steps
        seen += count
        optimizer.zero_grad()
        if len(y):
            (functional.cross_entropy(model(x), y) * (len(y) / seen)).backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1
