from torch.nn.functional import mse_loss


def train_and_log(model, optimizer, batches):
    means = [0.0] * len(batches)
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()

        def look(layer, inputs, output, number=number):
            means[number] = output.detach().mean().item()

        handle = model[1].register_forward_hook(look)
        try:
            loss = mse_loss(model(x), y)
        finally:
            handle.remove()
        loss.backward()
        optimizer.step()
    return means
