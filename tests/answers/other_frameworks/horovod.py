"""A training for one process becomes one for Horovod. What is not here is in the official solution."""

from known_answers import right, wrong

MODEL, WORKERS = "    model = task.model()\n", "    rank, workers = hvd.rank(), hvd.size()\n"
BROADCAST = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
LOG = "        mean = hvd.allreduce(loss.detach())\n        if rank == 0:\n            task.log(step, mean)\n"


@right("sums by hand, and the rate of one worker")
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


right("the model of worker 0 as an object, all reduced in one piece", {
    BROADCAST: "    model.load_state_dict(hvd.broadcast_object(model.state_dict(), root_rank=0))\n",
    "model.named_parameters())": "model.named_parameters(), num_groups=1)",
})  # fmt: skip
right("samples one by one", {
    "images, labels = task.read(numbers[rank::workers])":
    "mine = [task.read([number]) for number in numbers[rank::workers]]\n"
    "        images, labels = (torch.cat(parts) for parts in zip(*mine, strict=True))"
})  # fmt: skip

wrong("a network of its own", "takes its network from task.model()", {
    MODEL: "    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))\n"
})  # fmt: skip
wrong("the rate of another training", "the final weights", {"lr=task.lr * workers": "lr=0.31"})
wrong("four steps", "how many samples", {"range(task.steps)": "range(4)"})
wrong("the weights of the last worker", "the final weights", {"root_rank=0": "root_rank=workers - 1"})
wrong("only one calls", "does each worker call the same collectives", {
    LOG: "        if rank == 0:\n            task.log(step, hvd.allreduce(loss.detach()))\n"
})  # fmt: skip
