"""Averaging with MPI. What is not here is in the official solution."""

from known_answers import right, wrong

REDUCE = "    world.Allreduce(MPI.IN_PLACE, flat)\n"


@right("numpy's arrays, and the mean first")
def numpy():
    def average(world, parameters):
        import numpy
        import torch

        used = [parameter for parameter in parameters if parameter.grad is not None]
        mine = numpy.concatenate([parameter.grad.numpy().ravel() for parameter in used])
        total = numpy.empty_like(mine)
        world.Allreduce(mine / world.Get_size(), total)
        begin = 0
        for parameter in used:
            end = begin + parameter.numel()
            parameter.grad = torch.from_numpy(total[begin:end].reshape(parameter.shape))
            begin = end

    return (average,)


right("not waiting at once", {REDUCE: "    world.Iallreduce(MPI.IN_PLACE, flat).Wait()\n"})


@right("an all-gather, and a communicator of its own")
def all_gather():
    def average(world, parameters):
        import torch

        mine = world.Dup()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        rows = torch.empty(mine.Get_size(), len(flat))
        mine.Allgather(flat, rows)
        for gradient, part in zip(gradients, rows.mean(dim=0).split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.reshape(gradient.shape))

    return (average,)


wrong("unused parameters are forgotten", "raised AttributeError", {" if parameter.grad is not None]": "]"})
wrong("in float64", "more bytes than the gradients have", {REDUCE: "    flat = flat.double()\n" + REDUCE})
wrong("never waited for", "a request is never waited for", {REDUCE: "    world.Iallreduce(MPI.IN_PLACE, flat)\n"})


@wrong("pickled", "pickles what it sends")
def pickled():
    def average(world, parameters):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = world.allreduce(parameter.grad) / world.Get_size()

    return (average,)


@wrong("one by one", "more than one collective for one model")
def one_by_one():
    def average(world, parameters):
        from mpi4py import MPI

        for parameter in parameters:
            if parameter.grad is not None:
                total = parameter.grad.contiguous()
                world.Allreduce(MPI.IN_PLACE, total)
                parameter.grad = total / world.Get_size()

    return (average,)
