import torch
import torch.distributed as dist
from torch.nn import functional


def train_uneven(model, optimizer, batches):
    """Gradients and the number of samples travel together; a step without samples is the end."""
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    steps = 0
    batches = iter(batches)
    while True:
        message = torch.zeros(sum(sizes) + 1, dtype=parameters[0].dtype)
        batch = next(batches, None)
        if batch is not None:
            x, y = batch
            loss = functional.cross_entropy(model(x), y, reduction="sum")
            gradients = torch.autograd.grad(loss, parameters)
            message = torch.cat([*(gradient.reshape(-1) for gradient in gradients), message.new_tensor([len(y)])])
        dist.all_reduce(message)
        *flat, count = message.split([*sizes, 1])
        if count.item() == 0:
            return steps
        for parameter, gradient in zip(parameters, flat, strict=True):
            parameter.grad = gradient.reshape(parameter.shape) / count
        optimizer.step()
        steps += 1
