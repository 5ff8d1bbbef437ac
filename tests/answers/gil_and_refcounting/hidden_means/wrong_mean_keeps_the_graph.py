from torch.nn.functional import mse_loss

REJECTED_WITH = "a tensor with one number stays"


def train_and_log(model, optimizer, batches):
    means = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.mean()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return [mean.item() for mean in means]
