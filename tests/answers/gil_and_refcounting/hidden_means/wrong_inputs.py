from torch.nn.functional import mse_loss

REJECTED_WITH = "not the means of what model[1] puts out"


def train_and_log(model, optimizer, batches):
    means = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: means.append(inputs[0].mean().item()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return means
