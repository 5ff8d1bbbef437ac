import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "raised TypeError"


def train_uneven(model, optimizer, batches):
    parameters = list(model.parameters())
    steps, most = 0, len(batches)
    batches = iter(batches)
    while True:
        x, y = next(batches, (None, ()))
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        if count == 0 or steps > 10 * most:
            return steps
        optimizer.zero_grad()
        if len(y):
            (functional.cross_entropy(model(x), y) * (len(y) / count)).backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1
