from torch.nn.functional import mse_loss

REJECTED_WITH = "Look at the watched batch after each step"


def train_and_watch(model, optimizer, batches, watched):
    total = 0.0
    for x, y in batches:
        total += mse_loss(model(watched[0]), watched[1]).item()
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return total / len(batches)
