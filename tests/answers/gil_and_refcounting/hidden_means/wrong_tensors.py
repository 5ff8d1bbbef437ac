from torch.nn.functional import mse_loss

REJECTED_WITH = "but the host's does"


def train_and_log(model, optimizer, batches):
    means = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.detach().mean().cpu()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return means
