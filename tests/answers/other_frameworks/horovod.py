"""Exercise 2 of the lab on other frameworks: a training for one process becomes one for Horovod."""

from known_answers import right, wrong

MODEL = "    model = task.model()\n"
BROADCAST = MODEL + "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n"
RATE = "lr=task.lr * workers"
READ = "task.read(numbers[rank::workers])"
MEAN = "        mean = hvd.allreduce(loss.detach())\n"
LOG = "        if rank == 0:\n            task.log(step, mean)\n"
SAVE = "    if rank == 0:\n        task.save(model)"


@right("gathered, and averaged by hand")
def by_allgather():
    def train(task):
        import horovod.torch as hvd
        import torch

        hvd.init()
        model, workers = task.model(), hvd.size()
        start = hvd.allgather(torch.nn.utils.parameters_to_vector(model.parameters()).detach()[None])[0]
        torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
        for step in range(task.steps):
            first = (step * workers + hvd.rank()) * task.batch
            images, labels = task.read(range(first, first + task.batch))
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            mine = torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach()[None]])
            mean = hvd.allgather(mine[None]).mean(dim=0)
            with torch.no_grad():
                flat = torch.nn.utils.parameters_to_vector(model.parameters())
                torch.nn.utils.vector_to_parameters(flat - task.lr * workers * mean[:-1], model.parameters())
            if hvd.rank() == 0:
                task.log(step, mean[-1])
        if hvd.rank() == 0:
            task.save(model)

    return (train,)


@right("sums by hand")
def by_hand():
    def train(task):
        import horovod.torch as hvd
        import torch

        hvd.init()
        model = task.model()
        for parameter in model.parameters():
            hvd.broadcast_(parameter.data, root_rank=0)
        for step in range(task.steps):
            first = (step * hvd.size() + hvd.rank()) * task.batch
            images, labels = task.read(range(first, first + task.batch))
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            totals = hvd.grouped_allreduce([*gradients, loss.detach()], op=hvd.Sum)
            for parameter, total in zip(model.parameters(), totals[:-1], strict=True):
                parameter.data -= task.lr * total
            if hvd.rank() == 0:
                task.log(step, totals[-1] / hvd.size())
        if hvd.rank() == 0:
            task.save(model)

    return (train,)


right("shares one behind the other, sums and the rate of one worker", {
    READ: "task.read(numbers[rank * task.batch : (rank + 1) * task.batch])",
    RATE: "lr=task.lr",
    "model.named_parameters())": "model.named_parameters(), op=hvd.Sum)",
})  # fmt: skip
right("the model of worker 0 as an object, all reduced in one piece", {
    BROADCAST: MODEL + "    model.load_state_dict(hvd.broadcast_object(model.state_dict(), root_rank=0))\n",
    WRAP: "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), num_groups=1)\n",
})  # fmt: skip
right("scattered sums", {
    WRAP: "",
    "        optimizer.step()\n": "        for parameter in model.parameters():\n"
    "            flat = torch.zeros(-(-parameter.numel() // workers) * workers)\n"
    "            flat[: parameter.numel()] = parameter.grad.flatten()\n"
    "            mine = hvd.reducescatter(flat, op=hvd.Average)\n"
    "            parameter.grad.copy_(hvd.allgather(mine)[: parameter.numel()].view_as(parameter))\n"
    "        optimizer.step()\n",
})  # fmt: skip


wrong("added up and scaled", "One of the two is enough", {
    "model.named_parameters())": "model.named_parameters(), op=hvd.Sum)"
})  # fmt: skip
wrong("all save", "only worker 0 saves", {SAVE: "    task.save(model)"})
wrong("the batch of one process", "samples", {"whole = task.batch * workers": "whole = task.batch"})
wrong("biases not broadcast", "the workers start with different weights", {
    "model.state_dict()": "{name: one for name, one in model.named_parameters() if one.dim() > 1}"
})  # fmt: skip
wrong("the loss is added up", "times as large", {"loss.detach())": "loss.detach(), op=hvd.Sum)"})
wrong("the loss of worker 0", "is not the mean over the whole batch", {MEAN: "        mean = loss.detach()\n"})
wrong("no broadcast", "give all the weights and biases of worker 0", {BROADCAST: MODEL})
wrong("not wrapped", "no gradient is ever averaged", {WRAP: ""})
wrong("the rate of one worker", "and the rate should be too", {RATE: "lr=task.lr"})
wrong("the same samples", "all workers read the same samples", {READ: "task.read(numbers[: task.batch])"})
wrong("figures of another training", "samples", {"task.batch * workers": "48 * workers"})
wrong("the rate of another training", "not those of one process", {RATE: "lr=0.31"})
wrong("four steps", "samples in each of the", {"range(task.steps)": "range(4)"})
wrong("saves too early", "times: once, at the end, is asked for", {
    SAVE: "", "        images, labels =": "        if rank == 0:\n            task.save(model)\n        images, labels ="
})  # fmt: skip
wrong("the weights of the last worker", "not those of one process", {"root_rank=0": "root_rank=workers - 1"})
wrong("weights averaged at the end", "average every gradient in every step", {
    WRAP: "", SAVE: "    for one in model.parameters():\n        one.data.copy_(hvd.allreduce(one.data))\n" + SAVE
})  # fmt: skip
wrong("only one calls", "nobody moves any more", {MEAN + LOG: LOG.replace("mean)", "hvd.allreduce(loss.detach()))")})
wrong("saves once, before the last step", "save after the last step", {
    SAVE: "", "        images, labels =": "        if rank == 0 and step == task.steps - 1:\n            task.save(model)\n        images, labels ="
})  # fmt: skip
wrong("logs its own loss, then the mean", "is logged more than once", {
    LOG: "        if rank == 0:\n            task.log(step, loss.detach())\n            task.log(step, mean)\n"
})  # fmt: skip
GATHERED = """    model = task.model()
    every = hvd.allgather(torch.nn.utils.parameters_to_vector(model.parameters()).detach()[None])
    torch.nn.utils.vector_to_parameters(every[0].clone(), model.parameters())
"""
wrong(
    "gathered weights, and the rate of one worker",
    "and the rate should be too",
    {BROADCAST: GATHERED, RATE: "lr=task.lr"},
)
wrong("the last worker logs", "only worker 0 logs the loss", {LOG: LOG.replace("rank == 0", "rank == workers - 1")})
wrong("biases not averaged", "average every gradient in every step", {
    WRAP: "", "        optimizer.step()\n": "        for one in model.parameters():\n"
    "            if one.dim() > 1:\n                one.grad = hvd.allreduce(one.grad.contiguous())\n        optimizer.step()\n"
})  # fmt: skip
wrong("a loop without end", "in a loop without end", {READ: READ + "\n        while len(labels): pass"})
right("samples one by one", {
    f"images, labels = {READ}": "mine = [task.read([number]) for number in numbers[rank::workers]]\n"
    "        images, labels = (torch.cat(parts) for parts in zip(*mine, strict=True))"
})  # fmt: skip
wrong("the local rank is counted on each node", "all workers read the same samples", {
    "rank, workers = hvd.rank()": "rank, workers = hvd.local_rank()"
})  # fmt: skip
wrong("local rank 0 saves", "only worker 0 saves", {SAVE: SAVE.replace("rank == 0", "hvd.local_rank() == 0")})
wrong("trains a copy", "train it itself, and not a copy", {
    BROADCAST: BROADCAST + "    import copy\n\n    model = copy.deepcopy(model)\n"
})  # fmt: skip
