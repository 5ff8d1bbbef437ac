REJECTED_WITH = "added up, not averaged"


def average(world, parameters):
    import torch
    from mpi4py import MPI

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    world.Allreduce(MPI.IN_PLACE, flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
