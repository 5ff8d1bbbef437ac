from torch.nn.functional import mse_loss

REJECTED_WITH = "does not require grad"


def train_and_watch(model, optimizer, batches, watched):
    total = 0
    for x, y in batches:
        optimizer.zero_grad()
        loss = mse_loss(model(x).detach(), y)
        loss.backward()
        optimizer.step()
        total += mse_loss(model(watched[0]), watched[1]).item()
    return total / len(batches)
