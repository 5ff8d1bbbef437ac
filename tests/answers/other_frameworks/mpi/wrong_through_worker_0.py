REJECTED_WITH = "through one worker"


def average(world, parameters):
    import torch

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    total = torch.empty_like(flat)
    world.Reduce(flat, total, root=0)
    total /= world.Get_size()
    world.Bcast(total, root=0)
    for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
