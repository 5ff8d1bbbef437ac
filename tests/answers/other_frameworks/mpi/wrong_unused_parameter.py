REJECTED_WITH = "average raised TypeError"


def average(world, parameters):
    import torch
    from mpi4py import MPI

    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat([torch.flatten(gradient) for gradient in gradients])
    world.Allreduce(MPI.IN_PLACE, flat)
    flat /= world.Get_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
