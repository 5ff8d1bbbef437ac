"""Exercise 4 of the lab on other frameworks: Horovod, started again after a worker has died."""

from known_answers import right, wrong

SAVE = '            task.save({"done": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()})\n'
KEPT = 'hvd.broadcast_object(task.load(), root_rank=0, name="kept")'
OPTIMIZER = '        optimizer.load_state_dict(kept["optimizer"])  # (the wrapped one: wrapping forgets the state)\n'
FIRST = """    if kept is None:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    else:
"""
WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n"


right("all keep, and the newest state of all disks is taken", {
    "        if rank == 0:\n    " + SAVE[4:]: "        " + SAVE[12:],
    KEPT: 'max(hvd.allgather_object(task.load(), name="kept"), key=lambda one: -1 if one is None else one["done"])',
})  # fmt: skip


@right("worker 0 loads, and gives model, optimizer and step to the others; momentum by hand")
def by_hand():
    def train_on(task):
        import horovod.torch as hvd
        import torch
        from torch.nn import functional

        hvd.init()
        model, first = task.model(), torch.zeros(1, dtype=torch.int64)
        moving = [torch.zeros_like(parameter) for parameter in model.parameters()]
        if hvd.rank() == 0 and (kept := task.load()):
            first, weights, moving = kept
            for parameter, one in zip(model.parameters(), weights, strict=True):
                parameter.data.copy_(one)
        first = int(hvd.broadcast(first, 0, name="first"))
        moving = [hvd.broadcast(one, 0, name=f"moving.{place}") for place, one in enumerate(moving)]
        hvd.broadcast_parameters(model.state_dict(), 0)
        parameters = list(model.parameters())
        for step in range(first, task.steps):
            begin = (step * hvd.size() + hvd.rank()) * task.batch
            images, labels = task.read(list(range(begin, begin + task.batch)))
            gradients = torch.autograd.grad(functional.cross_entropy(model(images), labels), parameters)
            with torch.no_grad():
                for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    mean = hvd.allreduce(gradient.contiguous(), name=f"gradient.{place}")
                    moving[place] = task.momentum * moving[place] + mean
                    parameter -= task.lr * hvd.size() * moving[place]
            if hvd.rank() == 0:
                task.save((torch.tensor([step + 1]), [one.detach().clone() for one in parameters], moving))

    return (train_on,)


@right("parameters and the optimizer's state with Horovod's own functions")
def own_functions():
    def train_on(task):
        import horovod.torch as hvd
        import torch

        hvd.init()
        model = task.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=task.lr * hvd.size(), momentum=task.momentum)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        done = 0
        if hvd.rank() == 0 and task.load() is not None:
            done, weights, state = task.load()
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
        done = hvd.broadcast_object(done, 0)  # a number everywhere, so the name is the same too
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        if done:
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        while done < task.steps:
            first = (done * hvd.size() + hvd.rank()) * task.batch
            images, labels = task.read(range(first, first + task.batch))
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if hvd.rank() == 0:
                task.save([done, model.state_dict(), optimizer.state_dict()])

    return (train_on,)


wrong("nothing is kept", "started again all begin with step 0", {SAVE: "            pass\n"})
wrong("kept after every third step", "all would go on with an earlier step", {
    "        if rank == 0:\n": "        if rank == 0 and step % 3 == 2:\n"
})  # fmt: skip
wrong("kept at the end", "started again all begin with step 0", {
    "        if rank == 0:\n": "        if rank == 0 and step == task.steps - 1:\n"
})  # fmt: skip
wrong("worker 0 alone goes on", "the workers begin with different steps", {
    KEPT: "task.load()", FIRST: "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n    if kept:\n"
})  # fmt: skip
wrong("worker 0 alone goes on, and all others wait for its weights", "nobody moves any more", {KEPT: "task.load()"})
wrong("the optimizer begins anew", "its momentum is a part of the state", {OPTIMIZER: ""})
wrong("wrapped afterwards", "its momentum is a part of the state", {
    WRAP: "", "    for step in range(first": WRAP + "    for step in range(first"
})  # fmt: skip
wrong(
    "the last step is done twice",
    "the final weights are not those of one process",
    {'"done": step + 1': '"done": step'},
)
wrong("a step is left out", "started again all begin with step", {'"done": step + 1': '"done": step + 2'})
wrong("the weights of worker 0 are not kept", "the final weights are not those of one process", {
    '        model.load_state_dict(kept["model"])\n': "        hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
})  # fmt: skip
wrong("weights not given at the start", "different weights", {
    FIRST: "    if kept:\n",
    '"model": model.state_dict(), ': "", '        model.load_state_dict(kept["model"])\n': "",
})  # fmt: skip
wrong("worker 0's batch for all", "all workers read the same samples", {"workers + rank)": "workers)"})
wrong("the rate of one worker", "the final weights are not those of one process", {"task.lr * workers": "task.lr"})
right("samples one by one", {
    "images, labels = task.read(range(start, start + task.batch))": "mine = [task.read([number]) for number in range(start, start + task.batch)]\n"
    "        images, labels = (torch.cat(parts) for parts in zip(*mine, strict=True))"
})  # fmt: skip
