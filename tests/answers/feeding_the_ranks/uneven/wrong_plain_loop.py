import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "leaves after its"


def train_uneven(model, optimizer, batches):
    steps = 0
    for x, y in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        steps += 1
    return steps
