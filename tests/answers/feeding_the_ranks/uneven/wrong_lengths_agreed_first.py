import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "reads its batches before it takes its steps"


def train_uneven(model, optimizer, batches):
    batches = list(batches)
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for number in range(steps.item()):
        x, y = batches[number] if number < len(batches) else (None, ())
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        optimizer.zero_grad()
        if len(y):
            (functional.cross_entropy(model(x), y) * (len(y) / count)).backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
    return steps.item()
