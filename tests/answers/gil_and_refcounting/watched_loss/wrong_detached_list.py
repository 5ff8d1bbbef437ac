import torch
from torch.nn.functional import mse_loss

REJECTED_WITH = "keep plain numbers"


def train_and_watch(model, optimizer, batches, watched):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        loss = mse_loss(model(watched[0]), watched[1])
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()
