import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "do not take part in the same collective"


def train_uneven(model, optimizer, batches):
    batches, steps = iter(batches), 0
    parameters = list(model.parameters())
    while True:
        x, y = next(batches, (None, ()))
        flat = torch.tensor([len(y)], dtype=torch.float64)
        if len(y):
            loss = functional.cross_entropy(model(x), y, reduction="sum")
            flat = torch.cat([flat, *(gradient.reshape(-1) for gradient in torch.autograd.grad(loss, parameters))])
        dist.all_reduce(flat)
        if not flat[0]:
            return steps
        for parameter, part in zip(parameters, flat[1:].split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter) / flat[0]
        optimizer.step()
        steps += 1
