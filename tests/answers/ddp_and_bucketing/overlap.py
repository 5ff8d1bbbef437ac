"""Exercise 1 of the lab on DistributedDataParallel. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

ALL = "[*model.parameters(), *model.buffers()]"
SEND = "        dist.broadcast(tensor.detach(), 0)\n"
WORK = "        work = dist.all_reduce(parameter.grad, async_op=True)\n"
KEEP = "        self.travelling.append((parameter, work))\n"
WAIT = "            work.wait()\n"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
EARLY = MEAN[4:]
FINISH = "        for parameter, work in self.travelling:\n" + WAIT + MEAN + "        self.travelling.clear()\n"
LIST = "        self.travelling = []\n        for parameter in model.parameters():\n"
HOOK = "parameter.register_post_accumulate_grad_hook(self.launch)\n"

right("the collective divides, and the first is waited for first", {
    WORK + KEEP: "        self.travelling.append(dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, async_op=True))\n",
    FINISH: "        while self.travelling:\n            self.travelling.pop(0).wait()\n",
})  # fmt: skip
right("copies are broadcast by name", {
    f"    for tensor in {ALL}:\n{SEND}": "    everything = dict(model.named_parameters()) | dict(model.named_buffers())\n"
    "    for name in sorted(everything):\n        copy = everything[name].detach().clone()\n"
    "        dist.broadcast(copy, src=0, group=dist.group.WORLD)\n        everything[name].data.copy_(copy)\n",
})  # fmt: skip
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


@right("everything of one type is broadcast in one vector")
def flattened():
    def broadcast_state(model):
        tensors = [*model.parameters(), *model.buffers()]
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            vector = torch.cat([tensor.detach().flatten() for tensor in alike])
            dist.broadcast(vector, 0)
            with torch.no_grad():
                for tensor, part in zip(alike, vector.split([tensor.numel() for tensor in alike]), strict=True):
                    tensor.copy_(part.view_as(tensor))

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


@right("hooks of the nodes, as the real one has them; the last is waited for first")
def hooks_of_the_nodes():
    class Overlapped:
        def __init__(self, model):
            self.nodes, self.flying = [], {}
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    continue
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
                node.register_hook(lambda *_, parameter=parameter: self.send(parameter))
                self.nodes.append(node)  # else it is made anew for each graph, without the hook

        def send(self, parameter):
            parameter.grad.mul_(1 / dist.get_world_size())
            self.flying[parameter] = dist.all_reduce(parameter.grad, async_op=True)

        def finish(self):
            while self.flying:
                self.flying.popitem()[1].wait()

    return (Overlapped,)


@right("closures, a group of its own, all parameters in one set")
def closures():
    def Overlapped(model):
        group, pending = dist.new_group(), {}

        def hook_for(name):
            def hook(parameter):
                pending[name] = parameter, dist.all_reduce(parameter.grad, dist.ReduceOp.SUM, group, True)

            return hook

        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook_for(name))

        class Handle:
            def finish(self):
                for name in sorted(pending):
                    parameter, work = pending.pop(name)
                    assert work.wait()
                    parameter.grad = parameter.grad / dist.get_world_size(group)

        return Handle()

    return (Overlapped,)


wrong("broadcast not waited for", "never waits for broadcast", {SEND: SEND.replace("0)", "0, async_op=True)")})
wrong("everybody is the source", "a broadcast from rank 1", {"detach(), 0": "detach(), dist.get_rank()"})
wrong(
    "the mean of the models",
    "calls all_reduce, and broadcast is all",
    {SEND: "        dist.all_reduce(tensor.detach())\n"},
)
wrong("pickled state", "the bytes that broadcast_state sends", {
    f"    for tensor in {ALL}:\n{SEND}": f"    state = [{ALL}]\n    dist.broadcast_object_list(state, 0)\n"
    f"    for mine, theirs in zip({ALL}, state[0], strict=True):\n        mine.data.copy_(theirs)\n"
})  # fmt: skip
wrong("untied", "a tensor, or a tie", {
    SEND: SEND + "    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)\n"
})  # fmt: skip
wrong("eval", "the mode (train or eval)", {SEND: SEND + "    model.eval()\n"})
wrong("frozen too", "cannot register a hook on a tensor that doesn't require gradient", {
    LIST + "            if parameter.requires_grad:\n                " + HOOK: LIST + "            " + HOOK
})  # fmt: skip
wrong("a blocking call in the hook", "is called without async_op=True before backward has ended", {
    WORK + KEEP: "        dist.all_reduce(parameter.grad)\n" + EARLY
})  # fmt: skip
wrong("waits in the hook", "waits for an all_reduce before backward has ended", {
    WORK + KEEP: WORK + "        work.wait()\n" + EARLY
})  # fmt: skip
wrong("waits for the one before", "waits for an all_reduce before backward has ended", {
    WORK: "        if self.travelling:\n            self.travelling[-1][1].wait()\n" + WORK
})  # fmt: skip
wrong("blocking", "this is a blocking DDP", {
    WORK + KEEP: "        self.travelling.append(parameter)\n",
    FINISH: "        for parameter in self.travelling:\n            dist.all_reduce(parameter.grad)\n" + MEAN
    + "        self.travelling.clear()\n",
})  # fmt: skip
wrong("asynchronous, but after backward", "this is a blocking DDP", {
    WORK + KEEP: "        self.travelling.append(parameter)\n",
    FINISH: "        works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in self.travelling]\n"
    "        for work, parameter in zip(works, self.travelling, strict=True):\n" + WAIT + MEAN
    + "        self.travelling.clear()\n",
})  # fmt: skip
wrong("all in the last hook", "does not start in the hook of the gradient", {
    LIST: "        self.ready, self.all = [], sum(p.requires_grad for p in model.parameters())\n" + LIST,
    WORK + KEEP: "        self.ready.append(parameter)\n        if len(self.ready) < self.all:\n            return\n"
    "        for parameter in self.ready:\n    " + WORK + "    " + KEEP + "        self.ready.clear()\n",
})  # fmt: skip
wrong("one gradient later", "does not start in the hook of the gradient", {
    LIST: "        self.before = None\n" + LIST,
    WORK: "        before, self.before = self.before, parameter\n        if before is None:\n            return\n"
    "        parameter = before\n" + WORK,
    FINISH: "        self.launch(None)\n" + FINISH,
})  # fmt: skip
wrong("the tied weight twice", "that of a tied weight too", {
    LIST: LIST.replace("parameter in model.parameters()", "_, parameter in model.named_parameters(remove_duplicate=False)")
})  # fmt: skip
wrong("two in one", "several gradients travel in one all_reduce", {
    LIST: "        self.two = []\n" + LIST,
    WORK + KEEP: "        self.two.append(parameter)\n        if len(self.two) == 2:\n            self.send()\n\n"
    "    def send(self):\n        flat = torch.cat([p.grad.flatten() for p in self.two])\n"
    "        self.travelling.append((self.two, flat, dist.all_reduce(flat, async_op=True)))\n        self.two = []\n",
    FINISH: "        if self.two:\n            self.send()\n        for two, flat, work in self.travelling:\n" + WAIT
    + "            for p, part in zip(two, flat.split([p.numel() for p in two]), strict=True):\n"
    "                p.grad = part.view_as(p) / dist.get_world_size()\n        self.travelling.clear()\n",
})  # fmt: skip
wrong("never waits", "never waits for all_reduce", {FINISH: FINISH.replace(WAIT, "")})
wrong(
    "waits for the last only",
    "never waits for all_reduce",
    {WORK: EARLY + WORK, WAIT + MEAN: "            pass\n        work.wait()\n"},
)
