from torch.nn.functional import mse_loss

REJECTED_WITH = "one mean for each step"


def train_and_log(model, optimizer, batches):
    last = {}
    handle = model[1].register_forward_hook(lambda layer, inputs, output: last.update(mean=output.mean().item()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return [last["mean"]]
