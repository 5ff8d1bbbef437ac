REJECTED_WITH = "too many collectives"


def average(world, parameters):
    import torch
    from mpi4py import MPI

    for parameter in parameters:
        if parameter.grad is not None:
            total = parameter.grad.clone(memory_format=torch.contiguous_format)
            world.Allreduce(MPI.IN_PLACE, total)
            parameter.grad = total / world.Get_size()
