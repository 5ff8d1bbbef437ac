import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "the gradients, and two numbers a step"


def train_uneven(model, optimizer, batches):
    parameters = list(model.parameters())
    batches, steps = iter(batches), 0
    while True:
        x, y = next(batches, (None, ()))
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        if len(y):
            loss = functional.cross_entropy(model(x), y, reduction="sum")
            sums = torch.autograd.grad(loss, parameters)
        sizes = [parameter.numel() for parameter in parameters]
        place = torch.zeros(dist.get_world_size(), sum(sizes) + 1, dtype=torch.float64)
        place[dist.get_rank()] = torch.cat([gradient.reshape(-1) for gradient in sums] + [torch.tensor([len(y)])])
        dist.all_reduce(place)
        *flat, count = place.sum(0).split([*sizes, 1])
        if not count:
            return steps
        for parameter, gradient in zip(parameters, flat, strict=True):
            parameter.grad = gradient.view_as(parameter) / count
        optimizer.step()
        steps += 1
