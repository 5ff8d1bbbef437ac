import torch
from torch.nn.functional import mse_loss


@torch.no_grad()
def look(model, x, y):
    return float(mse_loss(model(x), y))


def train_and_watch(model, optimizer, batches, watched):
    losses = []
    for x, y in batches:
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(look(model, *watched))
    return sum(losses) / len(losses)
