"""Exercise 1 of the lab on other frameworks: gradients are averaged with one collective of MPI."""

from known_answers import right, wrong


def average(world, parameters):
    import torch
    from mpi4py import MPI

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    world.Allreduce(MPI.IN_PLACE, flat)
    flat /= world.Get_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


EQUAL = dict.fromkeys(
    ("10: `zip(gradients, parts, strict=True)` without strict", "10: True → False"),
    "there are as many parts as gradients",
)


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

wrong("added up", "added up, not averaged", {MEAN: ""})
wrong("divided by three", "does not have the right numbers", {MEAN: "    flat /= 3\n"})
wrong("stays in the copy", "is as before", {BACK: "        pass"})
wrong("unused parameters have zeros", "leave it None", {
    "    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]\n": "    for parameter in parameters:\n"
    "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
    "    gradients = [parameter.grad for parameter in parameters]\n"
})  # fmt: skip
wrong("unused parameters are forgotten", "raised AttributeError", {" if parameter.grad is not None]": "]"})
wrong("half precision", "is off by", {REDUCE: "    flat = flat.half().float()\n" + REDUCE})
wrong("in float64", "other bytes than those of the gradients", {
    REDUCE: "    flat = flat.double()\n" + REDUCE
})  # fmt: skip
wrong("never waited for", "a request is never waited for", {REDUCE: "    world.Iallreduce(MPI.IN_PLACE, flat)\n"})
wrong("the largest", "does not have the right numbers", {"flat)\n    flat /=": "flat, op=MPI.MAX)\n    flat /="})
wrong("a barrier and a count more", "too many collectives", {
    REDUCE: "    world.Allreduce(MPI.IN_PLACE, torch.ones(1))\n" + REDUCE
})  # fmt: skip
wrong("the shape is lost", "another shape or type", {
    "    for gradient, part in zip(gradients, parts, strict=True):\n" + BACK: "    used = [parameter for parameter in parameters if parameter.grad is not None]\n"
    "    for parameter, part in zip(used, parts, strict=True):\n        parameter.grad.data = part.clone()"
})  # fmt: skip
wrong("parameters are frozen", "the parameters themselves have changed", {
    MEAN: MEAN + "    for parameter in parameters:\n        parameter.requires_grad_(False)\n"
})  # fmt: skip
wrong("one buffer for all models", "after average was called for another model", {
    "def average(world, parameters):\n": "kept = {}\n\n\ndef average(world, parameters):\n",
    FLAT: "    known = kept.setdefault('buffer', torch.empty(100_000))\n"
    "    flat = known[: sum(gradient.numel() for gradient in gradients)]\n"
    "    torch.cat([gradient.flatten() for gradient in gradients], out=flat)\n",
    "    for gradient, part in zip(gradients, parts, strict=True):\n" + BACK: "    used = [parameter for parameter in parameters if parameter.grad is not None]\n"
    "    for parameter, part in zip(used, parts, strict=True):\n        parameter.grad = part.view(parameter.shape)"
})  # fmt: skip


@wrong("one by one", "too many collectives")
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


@wrong("order of memory", "does not have the right numbers")
def order_of_memory():
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

    return (average,)


@wrong("parameters", "the parameters themselves have changed")
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


wrong("grad mode stays off", "leaves grad mode other than before", {FLAT: "    torch.set_grad_enabled(False)\n" + FLAT})
wrong("a message beside it", "too many collectives for one step", {
    REDUCE: REDUCE + "    if world.Get_size() > 1:\n        mine, other = torch.zeros(4), torch.zeros(4)\n"
    "        rank, size = world.Get_rank(), world.Get_size()\n"
    "        request = world.Issend(mine, dest=(rank + 1) % size)\n"
    "        world.Recv(other, source=(rank - 1) % size)\n        request.Wait()\n"
})  # fmt: skip
wrong("a barrier in front", "a barrier is a collective more", {REDUCE: "    world.Barrier()\n" + REDUCE})
wrong("unused parameters leave the list", "changes the list of parameters", {
    FLAT: FLAT + "    parameters[:] = [parameter for parameter in parameters if parameter.grad is not None]\n"
})  # fmt: skip
wrong(
    "all workers there are",
    "says nothing on `world`",
    {REDUCE: "    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat)\n"},
)
wrong("worker 0 alone calls", "each of its workers has to take part", {
    REDUCE: "    if world.Get_rank() == 0:\n    " + REDUCE
})  # fmt: skip
right("a method of the class", {REDUCE: "    MPI.Comm.Allreduce(world, MPI.IN_PLACE, flat)\n"})
wrong("one by one, by a method of the class", "too many collectives", {
    REDUCE: "    for gradient in gradients:\n        MPI.Comm.Allreduce(world, MPI.IN_PLACE, gradient.contiguous())\n" + REDUCE
})  # fmt: skip
wrong("a barrier of all workers beside it", "is called on COMM_WORLD", {
    REDUCE: REDUCE + "    if world.Get_size() == 3:\n        MPI.COMM_WORLD.Barrier()\n"
})  # fmt: skip
wrong("world is freed", "average frees `world`", {MEAN: MEAN + "    if world.Get_size() == 2:\n        world.Free()\n"})
wrong("hooks stay behind", "average changes parameters[0].hooks", {
    MEAN: MEAN + "    for parameter in parameters:\n        parameter.register_hook(lambda gradient: gradient)\n"
})  # fmt: skip
wrong("gradients that want gradients", ".grad.requires_grad", {
    BACK: BACK + "\n    for gradient in gradients:\n        gradient.requires_grad_(True)"
})  # fmt: skip
wrong("an environment variable", "leaves the environment variables other than before", {
    FLAT: FLAT + "    import os\n\n    os.environ['ELEMENTS'] = str(len(flat))\n"
})  # fmt: skip
wrong(
    "a file",
    "leaves the files in its folder other than before",
    {FLAT: FLAT + "    open('left_behind', 'w').close()\n"},
)
wrong("the course's code", "the course's own code is no answer", {
    FLAT: "    from checks.other_frameworks import averaging\n\n" + FLAT
})  # fmt: skip
wrong("looks at the check's frame", "looks into the check", {
    FLAT: FLAT + "    import sys\n\n    sys._getframe(1).f_locals.clear()\n"
})  # fmt: skip
