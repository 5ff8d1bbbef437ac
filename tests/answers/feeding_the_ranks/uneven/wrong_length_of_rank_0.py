import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "stops before its batches are used up"


def train_uneven(model, optimizer, batches):
    batches, steps = iter(batches), 0
    while True:
        x, y = next(batches, (None, ()))
        more = torch.tensor([len(y)])
        dist.broadcast(more, 0)
        if not more.item():
            return steps
        count = len(y)
        optimizer.zero_grad()
        if count:
            functional.cross_entropy(model(x), y, reduction="sum").backward()
        flat = torch.cat(
            [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.view(-1) for p in model.parameters()]
        )
        flat = torch.cat([flat, flat.new_tensor([count])])
        dist.all_reduce(flat)
        for p, part in zip(model.parameters(), flat[:-1].split([p.numel() for p in model.parameters()]), strict=True):
            p.grad = part.view_as(p) / flat[-1]
        optimizer.step()
        steps += 1
