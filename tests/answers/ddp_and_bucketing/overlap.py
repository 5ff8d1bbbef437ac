"""Exercise 1 of the lab on DistributedDataParallel. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

WORK = "        work = dist.all_reduce(parameter.grad, async_op=True)\n"
KEEP = "        self.travelling.append((parameter, work))\n"
WAIT = "            work.wait()\n"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
EARLY = MEAN[4:]
FINISH = "        for parameter, work in self.travelling:\n" + WAIT + MEAN + "        self.travelling.clear()\n"
LIST = "        self.travelling = []\n        for parameter in model.parameters():\n"
HOOK = "parameter.register_post_accumulate_grad_hook(self.launch)\n"

right("waits when backward ends", {
    WORK: "        if not self.travelling:\n"
    "            torch.autograd.Variable._execution_engine.queue_callback(self.arrive)\n" + WORK,
    FINISH: "        pass\n\n    def arrive(self):\n" + FINISH,
})  # fmt: skip


@right("all are broadcast at once, and then all waits")
def asynchronous():
    @torch.no_grad()
    def broadcast_state(model):
        works = [dist.broadcast(one, src=0, async_op=True) for one in (*model.parameters(), *model.buffers())]
        for work in works:
            work.wait()

    return (broadcast_state,)


@right("a copy travels, and takes the place of the gradient")
def copies_travel():
    class Overlapped:
        def __init__(self, model):
            self.copies = {}
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(lambda gradient, parameter=parameter: self.launch(parameter, gradient))

        def launch(self, parameter, gradient):
            copy = gradient / dist.get_world_size()
            self.copies[parameter] = copy, dist.all_reduce(copy, async_op=True)

        def finish(self):
            for parameter, (copy, work) in self.copies.items():
                work.wait()
                parameter.grad = copy

    return (Overlapped,)


wrong("frozen too", "cannot register a hook on a tensor that doesn't require gradient", {
    LIST + "            if parameter.requires_grad:\n                " + HOOK: LIST + "            " + HOOK
})  # fmt: skip
wrong("a blocking call in the hook", "is called without async_op=True before backward has ended", {
    WORK + KEEP: "        dist.all_reduce(parameter.grad)\n" + EARLY
})  # fmt: skip
wrong("waits in the hook", "waits for an all_reduce before backward has ended", {
    WORK + KEEP: WORK + "        work.wait()\n" + EARLY
})  # fmt: skip
wrong("blocking", "this is a blocking DDP", {
    WORK + KEEP: "        self.travelling.append(parameter)\n",
    FINISH: "        for parameter in self.travelling:\n            dist.all_reduce(parameter.grad)\n" + MEAN
    + "        self.travelling.clear()\n",
})  # fmt: skip
wrong("all in the last hook", "how many gradients are ready when each all_reduce starts", {
    LIST: "        self.ready, self.all = [], sum(p.requires_grad for p in model.parameters())\n" + LIST,
    WORK + KEEP: "        self.ready.append(parameter)\n        if len(self.ready) < self.all:\n            return\n"
    "        for parameter in self.ready:\n    " + WORK + "    " + KEEP + "        self.ready.clear()\n",
})  # fmt: skip
