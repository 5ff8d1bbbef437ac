from torch.nn.functional import mse_loss

REJECTED_WITH = "one mean for each step"


def train_and_log(model, optimizer, batches):
    means = []
    for x, y in batches:
        model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.mean().item()))
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return means
