from torch.nn.functional import mse_loss

REJECTED_WITH = "divide by the number of batches"


def train_and_watch(model, optimizer, batches, watched):
    total = 0
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        loss = mse_loss(model(watched[0]), watched[1])
        total += loss.item()
    return total
