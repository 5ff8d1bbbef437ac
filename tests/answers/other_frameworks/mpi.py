"""Exercise 1 of the lab on other frameworks. What is not here is in the official solution."""

from known_answers import right, wrong

FLAT = "    flat = torch.cat([gradient.flatten() for gradient in gradients])\n"
REDUCE = "    world.Allreduce(MPI.IN_PLACE, flat)\n"
MEAN = "    flat /= world.Get_size()\n"
BACK = "        gradient.copy_(part.view_as(gradient))"


# --- right, and written differently


@right("numpy")
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


@right("an array of Python's, and the mean first")
def pythons_array():
    def average(world, parameters):
        import array

        import torch
        from mpi4py import MPI

        used = [parameter.grad for parameter in parameters if parameter.grad is not None]
        mine = array.array("f", [one / world.Get_size() for gradient in used for one in gradient.flatten().tolist()])
        total = array.array("f", bytes(4 * len(mine)))
        world.Allreduce([mine, MPI.FLOAT], [total, MPI.FLOAT], op=MPI.SUM)
        flat = torch.tensor(total)
        for gradient in used:
            gradient[...] = flat[: gradient.numel()].reshape(gradient.shape)
            flat = flat[gradient.numel() :]

    return (average,)


@right("an all-gather, and a communicator of its own")
def all_gather():
    def average(world, parameters):
        import torch

        mine = world.Dup()
        mine.Get_group().Free()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        rows = torch.empty(mine.Get_size(), len(flat))
        mine.Allgather(flat, rows)
        for gradient, part in zip(gradients, rows.mean(dim=0).split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.reshape(gradient.shape))

    return (average,)


# --- wrong

wrong("unused parameters are forgotten", "raised AttributeError", {" if parameter.grad is not None]": "]"})
wrong(
    "half precision", "the gradients: not what the exercise says", {REDUCE: "    flat = flat.half().float()\n" + REDUCE}
)
wrong("in float64", "more bytes than the gradients have", {
    REDUCE: "    flat = flat.double()\n" + REDUCE
})  # fmt: skip
wrong("never waited for", "a request is never waited for", {REDUCE: "    world.Iallreduce(MPI.IN_PLACE, flat)\n"})
wrong("the shape is lost", "the gradients: not what", {
    "    for gradient, part in zip(gradients, parts, strict=True):\n" + BACK: "    used = [parameter for parameter in parameters if parameter.grad is not None]\n"
    "    for parameter, part in zip(used, parts, strict=True):\n        parameter.grad.data = part.clone()"
})  # fmt: skip


@wrong("one by one", "several collectives for one model")
def one_by_one():
    def average(world, parameters):
        import torch
        from mpi4py import MPI

        for parameter in parameters:
            if parameter.grad is not None:
                total = parameter.grad.clone(memory_format=torch.contiguous_format)
                world.Allreduce(MPI.IN_PLACE, total)
                parameter.grad = total / world.Get_size()

    return (average,)


@wrong("parameters", "the parameters themselves")
def parameters():
    def average(world, parameters):
        import torch
        from mpi4py import MPI

        flat = torch.cat([parameter.detach().flatten() for parameter in parameters]) + 0.1 * world.Get_rank()
        world.Allreduce(MPI.IN_PLACE, flat)
        flat /= world.Get_size()
        for parameter, part in zip(
            parameters, flat.split([parameter.numel() for parameter in parameters]), strict=True
        ):
            parameter.data.copy_(part.view_as(parameter))

    return (average,)


@wrong("pickled", "pickles what it sends")
def pickled():
    def average(world, parameters):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = world.allreduce(parameter.grad) / world.Get_size()

    return (average,)


@wrong("through worker 0", "through one worker")
def through_worker_0():
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

    return (average,)


@right("a persistent request, started once")
def persistent():
    def average(world, parameters):
        import torch
        from mpi4py import MPI

        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = torch.empty_like(flat)
        request = world.Allreduce_init(flat, total, op=MPI.SUM)
        request.Start()
        request.Wait()
        total /= world.Get_size()
        for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    return (average,)


@wrong("a vector for each size", "after average was called for another model")
def vector_for_each_size():
    vectors = {}

    def average(world, parameters):
        import torch
        from mpi4py import MPI

        used = [parameter for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([parameter.grad.flatten() for parameter in used])
        vector = vectors.setdefault(len(flat), torch.empty_like(flat)).copy_(flat)
        world.Allreduce(MPI.IN_PLACE, vector)
        vector /= world.Get_size()
        for parameter, part in zip(used, vector.split([parameter.numel() for parameter in used]), strict=True):
            parameter.grad = part.view_as(parameter)

    return (average,)


wrong("a barrier in front", "a barrier is one collective more", {REDUCE: "    world.Barrier()\n" + REDUCE})
right("a method of the class", {REDUCE: "    MPI.Comm.Allreduce(world, MPI.IN_PLACE, flat)\n"})
