REJECTED_WITH = "the parameters themselves have changed"


def average(world, parameters):
    import torch
    from mpi4py import MPI

    flat = torch.cat([parameter.detach().flatten() for parameter in parameters]) + 0.1 * world.Get_rank()
    world.Allreduce(MPI.IN_PLACE, flat)
    flat /= world.Get_size()
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters]), strict=True):
        parameter.data.copy_(part.view_as(parameter))
