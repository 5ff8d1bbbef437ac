from torch.nn.functional import mse_loss

REJECTED_WITH = "but the host's does"


def train_and_log(model, optimizer, batches):
    outputs = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: outputs.append(output.detach().cpu()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return [output.mean().item() for output in outputs]
