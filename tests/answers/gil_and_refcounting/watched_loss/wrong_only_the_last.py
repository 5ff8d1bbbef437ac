from torch.nn.functional import mse_loss

REJECTED_WITH = "return the mean of all losses"


def train_and_watch(model, optimizer, batches, watched):
    last = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        loss = mse_loss(model(watched[0]), watched[1])
        last = loss.item()
    return last
