"""Exercise 2 of the lab on DistributedDataParallel: an all-reduce for each gradient, started in its hook."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        work = dist.all_reduce(parameter.grad, async_op=True)
        self.travelling.append((parameter, work))

    def finish(self):
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.travelling.clear()


EQUAL = {
    "8: __init__ with `dist.barrier()`": "a constructor may talk to the other ranks",
    "8: __init__ with `[p.register_hook(lambda g: g) for p in model.parameters() if p.requires_grad]`": "it may add hooks",
    "14: launch with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "a hook of backward has "
    "a grad mode of its own, which autograd puts back",
}
HOOK = "register_post_accumulate_grad_hook"
LAUNCH = "        work = dist.all_reduce(parameter.grad, async_op=True)\n"
KEEP = "        self.travelling.append((parameter, work))\n"
WAIT = "            work.wait()\n"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
EARLY = "        parameter.grad /= dist.get_world_size()\n"
CLEAR = "        self.travelling.clear()\n"


# --- right, and written differently


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
            if parameter.grad is not None:
                copy += parameter.grad / dist.get_world_size()
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


@right("the collective divides")
def mean_by_gloo():
    class Overlapped:
        def __init__(self, model):
            self.works = []
            for parameter in filter(lambda one: one.requires_grad, model.parameters()):
                parameter.register_post_accumulate_grad_hook(self.launch)

        def launch(self, parameter):
            self.works.append(dist.all_reduce(tensor=parameter.grad, op=dist.ReduceOp.AVG, async_op=True))

        def finish(self):
            while self.works:
                self.works.pop(0).wait()

    return (Overlapped,)


@right("waits when backward ends")
def waits_when_backward_ends():
    class Overlapped:
        def __init__(self, model):
            self.travelling = []
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.launch)

        def launch(self, parameter):
            if not self.travelling:
                torch.autograd.Variable._execution_engine.queue_callback(self.arrive)
            self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

        def arrive(self):
            for parameter, work in self.travelling:
                work.wait()
                parameter.grad.div_(dist.get_world_size())
            self.travelling = []

        def finish(self):
            """Nothing is left to do: autograd has called ``arrive`` at the end of backward."""

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
                size = dist.get_world_size(group)
                for name in sorted(pending):
                    parameter, work = pending.pop(name)
                    assert work.wait()
                    parameter.grad = parameter.grad / size

        return Handle()

    return (Overlapped,)


# --- wrong: when something starts, and how


wrong("frozen too", "cannot register a hook on a tensor that doesn't require gradient", {
    "            if parameter.requires_grad:\n                p": "            p"
})  # fmt: skip
wrong("a blocking call in the hook", "is called without async_op=True in a hook: backward stands still", {
    LAUNCH: "        dist.all_reduce(parameter.grad)\n" + EARLY, KEEP: ""
})  # fmt: skip
wrong(
    "waits in the hook",
    "there is a wait while backward is still running",
    {LAUNCH: LAUNCH + "        work.wait()\n" + EARLY, KEEP: ""},
)
wrong("waits for the one before", "there is a wait while backward is still running", {
    LAUNCH: "        if self.travelling:\n            self.travelling[-1][1].wait()\n" + LAUNCH
})  # fmt: skip
wrong("one gradient later", "launched too late: launch each gradient in its own hook", {
    "        self.travelling = []\n": "        self.travelling, self.before = [], None\n",
    LAUNCH: "        before, self.before = self.before, parameter\n        if before is None:\n            return\n"
    "        parameter = before\n" + LAUNCH,
    "        for parameter, work in": "        self.launch(None)\n        for parameter, work in",
})  # fmt: skip
wrong("the tied weight twice", "the tied weight travels twice", {
    "for parameter in model.parameters()": "for _, parameter in model.named_parameters(remove_duplicate=False)"
})  # fmt: skip
wrong("hooks taken off", "calls no all_reduce at all", {
    "                parameter.reg": "                self.handles.append(parameter.reg",
    "hook(self.launch)": "hook(self.launch))",
    "        self.travelling = []\n": "        self.travelling, self.handles = [], []\n",
    CLEAR: CLEAR + "        for handle in self.handles:\n            handle.remove()\n",
})  # fmt: skip
wrong(
    "matrices only",
    "gradients never travel, such as that of",
    {"requires_grad:": "requires_grad and parameter.dim() > 1:"},
)
wrong("the first step only", "calls no all_reduce at all", {
    LAUNCH: "        if hasattr(self, 'over'):\n            return\n" + LAUNCH, CLEAR: CLEAR + "        self.over = True\n"
})  # fmt: skip


@wrong("blocking", "this is a blocking DDP: the first all_reduce starts when backward has ended")
def blocking():
    class Overlapped:
        def __init__(self, model):
            self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def finish(self):
            for parameter in self.parameters:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    return (Overlapped,)


@wrong("asynchronous, but after backward", "this is a blocking DDP")
def after_backward():
    class Overlapped:
        def __init__(self, model):
            self.ready = []
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.ready.append)

        def finish(self):
            works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in self.ready]
            for work, parameter in zip(works, self.ready, strict=True):
                work.wait()
                parameter.grad /= dist.get_world_size()
            self.ready.clear()

    return (Overlapped,)


@wrong("all in the last hook", "are launched when the last gradient is ready")
def all_in_the_last_hook():
    class Overlapped:
        def __init__(self, model):
            self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.ready, self.works = 0, []
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self.count)

        def count(self, parameter):
            self.ready += 1
            if self.ready == len(self.parameters):
                self.works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in self.parameters]

        def finish(self):
            for work, parameter in zip(self.works, self.parameters, strict=True):
                work.wait()
                parameter.grad /= dist.get_world_size()
            self.ready = 0

    return (Overlapped,)


@wrong("two in one", "several gradients travel in one all_reduce")
def two_in_one():
    class Overlapped:
        def __init__(self, model):
            self.waiting, self.travelling = [], []
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.launch)

        def launch(self, parameter):
            self.waiting.append(parameter)
            if len(self.waiting) == 2:
                self.send()

        def send(self):
            vector = torch.cat([parameter.grad.flatten() for parameter in self.waiting])
            self.travelling.append((self.waiting, vector, dist.all_reduce(vector, async_op=True)))
            self.waiting = []

        def finish(self):
            if self.waiting:
                self.send()
            for parameters, vector, work in self.travelling:
                work.wait()
                for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
                    parameter.grad = part.view_as(parameter) / dist.get_world_size()
            self.travelling.clear()

    return (Overlapped,)


# --- wrong: waiting, and the numbers

wrong("never waits", "never waits for", {WAIT: "", LAUNCH: EARLY + LAUNCH, MEAN: "            pass\n"})
wrong("waits for the last only", "never waits for", {
    LAUNCH: EARLY + LAUNCH, WAIT: "", MEAN: "            pass\n        work.wait()\n"
})  # fmt: skip
wrong("divides what travels", "changes a tensor while all_reduce is still using it", {LAUNCH: LAUNCH + EARLY, MEAN: ""})
wrong("the list is never emptied", "changes a tensor while all_reduce is still using it", {CLEAR: ""})
wrong("sum", "is the sum over the ranks: divide by the world size", {MEAN: ""})
wrong("divides twice", "is divided by the world size twice", {LAUNCH: EARLY + LAUNCH})
wrong("three ranks always", "the gradient of", {"/= dist.get_world_size()": "/= 3"})
wrong(
    "in half precision",
    "the gradient of",
    {LAUNCH: "        parameter.grad.copy_(parameter.grad.bfloat16())\n" + LAUNCH},
)
wrong("the hook of the tensor", "is still this rank's own: the mean does not arrive in `.grad`", {
    HOOK: "register_hook", LAUNCH: "        gradient = parameter / dist.get_world_size()\n"
    "        work = dist.all_reduce(gradient, async_op=True)\n", MEAN: ""
})  # fmt: skip

# --- wrong: what else is changed

wrong(
    "eval",
    "is in another mode",
    {LAUNCH: LAUNCH, "        self.travelling = []\n": "        self.travelling = []\n        model.eval()\n"},
)
wrong("others' hooks are removed", "has lost hooks", {
    "            if parameter.requires_grad:\n": "            parameter._backward_hooks = None\n            if parameter.requires_grad:\n"
})  # fmt: skip
wrong(
    "gradients are cleared",
    "is missing",
    {"        self.travelling.clear()": "            parameter.grad = None\n        self.travelling.clear()"},
)
wrong("a hook more in each step", "has a hook more than before", {
    CLEAR: "        parameter.register_hook(lambda gradient: gradient)\n" + CLEAR
})  # fmt: skip
wrong("a history is kept", "keeps more tensors after every call", {
    "        self.travelling = []\n": "        self.travelling, self.history = [], []\n",
    MEAN: MEAN + "            self.history.append(parameter.grad.clone())\n",
})  # fmt: skip
wrong(
    "momentum of its own",
    "has other numbers than before",
    {MEAN: MEAN + "            parameter.data.sub_(parameter.grad)\n"},
)


@wrong("the library", "DistributedDataParallel, which does the exercise")
def library():
    class Overlapped:
        def __init__(self, model):
            self.ddp = torch.nn.parallel.DistributedDataParallel(model)

        def finish(self):
            pass

    return (Overlapped,)


wrong(
    "what is over is kept",
    "is still held after the third, and its gradients with it: forget it in finish()",
    {
        CLEAR: "        self.over = [*getattr(self, 'over', ()), *self.travelling]\n" + CLEAR,
    },
)
wrong("infinities are made numbers", "one has to come out", {MEAN: MEAN + "            parameter.grad.nan_to_num_()\n"})


@wrong("a module with a history", "keeps more tensors after every call")
def module_with_a_history():
    class Overlapped(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.module, self.works, self.history = model, [], []
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.begin)

        def begin(self, parameter):
            self.works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

        def finish(self):
            for parameter, work in self.works:
                work.wait()
                parameter.grad /= dist.get_world_size()
                self.history.append(parameter.grad.clone())
            self.works.clear()

    return (Overlapped,)


@wrong(
    "a blocking one that writes into the works", "call wait() on what a collective returns: its _launch is not there"
)
def writes_into_the_works():
    class Overlapped:
        def __init__(self, model):
            self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad][::-1]

        def finish(self):
            for number, parameter in enumerate(self.parameters):
                work = dist.all_reduce(parameter.grad, async_op=True)
                work._launch.ready, work._launch.phase = number + 1, "backward"
                work.wait()
                parameter.grad /= dist.get_world_size()

    return (Overlapped,)


wrong(
    "gradients require gradients",
    "requires a gradient itself",
    {MEAN: MEAN + "            parameter.grad.requires_grad_(True)\n"},
)
wrong("cuDNN may choose", "leaves torch's defaults other", {
    "        self.travelling = []\n": "        torch.backends.cudnn.benchmark = True\n        self.travelling = []\n"
})  # fmt: skip
