import collections

from torch.nn.functional import mse_loss

REJECTED_WITH = "each step leaves the graph of a loss behind"


def train_and_watch(model, optimizer, batches, watched):
    total, last = 0.0, collections.deque(maxlen=5)
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        loss = mse_loss(model(watched[0]), watched[1])
        last.append(loss)
        total += loss.item()
    return total / len(batches)
