REJECTED_WITH = "are as before"


def average(world, parameters):
    import torch
    from mpi4py import MPI

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    world.Allreduce(MPI.IN_PLACE, flat)
    flat /= world.Get_size()
