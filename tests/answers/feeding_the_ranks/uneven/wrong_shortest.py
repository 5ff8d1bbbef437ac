import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "stops before its batches are used up"


def train_uneven(model, optimizer, batches):
    batches, steps = iter(batches), 0
    while True:
        x, y = next(batches, (None, ()))
        facts = torch.tensor([len(y)])
        everyone = [torch.empty_like(facts) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, facts)
        counts = [one[0].item() for one in everyone]
        if min(counts) == 0:
            return steps
        optimizer.zero_grad()
        (functional.cross_entropy(model(x), y) * len(y) / sum(counts)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1
