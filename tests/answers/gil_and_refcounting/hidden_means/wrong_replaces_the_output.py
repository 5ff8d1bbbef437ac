from torch.nn.functional import mse_loss

REJECTED_WITH = "the training needs its graph"


def train_and_log(model, optimizer, batches):
    means = []

    def look(layer, inputs, output):
        output = output.detach()  # no graph, no leak
        means.append(output.mean().item())
        return output

    handle = model[1].register_forward_hook(look)
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return means
