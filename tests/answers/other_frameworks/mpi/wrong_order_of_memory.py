REJECTED_WITH = "in the wrong places"


def average(world, parameters):
    import torch
    from mpi4py import MPI

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    world.Allreduce(MPI.IN_PLACE, flat)
    flat /= world.Get_size()
    begin = 0
    for gradient in gradients:
        part = flat[begin : begin + gradient.numel()]
        gradient.as_strided(part.shape, (1,)).copy_(part)
        begin += gradient.numel()
