import gc

from torch.nn.functional import mse_loss

REJECTED_WITH = "gc.collect() does not help"


def train_and_log(model, optimizer, batches):
    outputs = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        gc.collect()
    handle.remove()
    return [output.mean().item() for output in outputs]
