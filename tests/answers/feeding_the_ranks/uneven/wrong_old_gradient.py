import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "still hands in the gradient of its last batch"


def train_uneven(model, optimizer, batches):
    parameters = list(model.parameters())
    batches, steps = iter(batches), 0
    own, count = [torch.zeros_like(parameter) for parameter in parameters], 0
    while True:
        x, y = next(batches, (None, ()))
        facts = torch.tensor([len(y), len(y) or count])
        dist.all_reduce(facts)
        if facts[0] == 0:
            return steps
        if len(y):
            count = len(y)
            loss = functional.cross_entropy(model(x), y, reduction="sum")
            own = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, own, strict=True):
            parameter.grad = gradient.clone()
            dist.all_reduce(parameter.grad)
            parameter.grad /= facts[1]
        optimizer.step()
        steps += 1
