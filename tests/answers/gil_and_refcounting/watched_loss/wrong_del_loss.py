from torch.nn.functional import mse_loss

REJECTED_WITH = "each step leaves the graph of a loss behind"


def train_and_watch(model, optimizer, batches, watched):
    total = 0
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        loss = mse_loss(model(watched[0]), watched[1])
        total += loss
        del loss
    return total.item() / len(batches)
