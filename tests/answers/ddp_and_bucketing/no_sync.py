"""Exercise 4 of the lab on DistributedDataParallel: micro-batches in silence, and then everything at once."""

import contextlib

import torch
import torch.distributed as dist
from known_answers import right, wrong


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()


EQUAL = {
    "11: __init__ with `dist.barrier()`": "a constructor may talk to the other ranks",
    "11: __init__ with `[p.register_hook(lambda g: g) for p in model.parameters() if p.requires_grad]`": "it may add hooks",
}
BLOCK = "        try:\n            yield\n        finally:\n            self.synchronise = before\n"
SUM = "                    dist.all_reduce(parameter.grad)\n"
MEAN = "                    parameter.grad /= dist.get_world_size()\n"
INIT = "        self.model, self.synchronise = model, True\n"
FINISH = "    def finish(self):\n"


# --- right, and written differently


@right("counts how deep the blocks are; hooks overlap")
def depth_and_hooks():
    class Quiet:
        def __init__(self, owner):
            self.owner = owner

        def __enter__(self):
            self.owner.depth += 1

        def __exit__(self, *_):
            self.owner.depth -= 1

    class Accumulating:
        def __init__(self, model):
            self.depth, self.travelling = 0, []
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.launch)

        def no_sync(self):
            return Quiet(self)

        def launch(self, parameter):
            if self.depth == 0:
                self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

        def finish(self):
            for parameter, work in self.travelling:
                work.wait()
                parameter.grad /= dist.get_world_size()
            self.travelling.clear()

    return (Accumulating,)


@right("what finish() calls is exchanged; one vector")
def one_vector():
    class Accumulating:
        def __init__(self, model):
            self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.average = self.really

        @contextlib.contextmanager
        def no_sync(self):
            with contextlib.ExitStack() as stack:
                stack.callback(setattr, self, "average", self.average)
                self.average = int
                yield

        def finish(self):
            self.average()

        def really(self):
            vector = torch.nn.utils.parameters_to_vector([parameter.grad for parameter in self.parameters])
            dist.all_reduce(vector)
            vector /= dist.get_world_size()
            parts = vector.split([p.numel() for p in self.parameters])
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)

    return (Accumulating,)


@right("a stack of blocks, waits from the last to the first, the mean before")
def stack_of_blocks():
    class Accumulating:
        def __init__(self, model):
            self.gradients = lambda: [p.grad for p in model.parameters() if p.grad is not None]
            self.blocks = []

        @contextlib.contextmanager
        def no_sync(self):
            token = object()
            self.blocks.append(token)
            try:
                yield self
            finally:
                self.blocks.remove(token)

        def finish(self):
            if self.blocks:
                return
            gradients = self.gradients()
            torch._foreach_mul_(gradients, 1 / dist.get_world_size())
            works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
            while works:
                works.pop().wait()

    return (Accumulating,)


@right("the context is a class in the class, and what was is kept in it")
def class_in_the_class():
    class Accumulating:
        class NoSync:
            def __init__(self, ddp):
                self.ddp = ddp

            def __enter__(self):
                self.was, self.ddp.quiet = self.ddp.quiet, True
                return self.ddp

            def __exit__(self, kind, error, trace):
                self.ddp.quiet = self.was
                return None

        def __init__(self, model):
            self.quiet = False
            self.named = dict(model.named_parameters())

        def no_sync(self):
            return Accumulating.NoSync(self)

        def finish(self):
            for name in () if self.quiet else self.named:
                parameter = self.named[name]
                if parameter.requires_grad:
                    mean = parameter.grad.detach().clone()
                    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
                    parameter.grad = mean

    return (Accumulating,)


# --- wrong: the block

wrong(
    "does nothing",
    "a gradient only adds up on its own rank",
    {"before, self.synchronise = self.synchronise, False": "before = True"},
)
wrong("skips the last too", "calls no all_reduce at all", {BLOCK: "        yield\n"})
wrong(
    "not back after an exception",
    "after an exception in a block",
    {BLOCK: "        yield\n        self.synchronise = before\n"},
)
wrong("back after some exceptions only", "after an exception in a block", {
    BLOCK: "        try:\n            yield\n        except ValueError:\n            self.synchronise = before\n            raise\n        self.synchronise = before\n"
})  # fmt: skip
wrong("swallows the exception", "inside the no_sync() block does not come out", {
    BLOCK: "        with contextlib.suppress(BaseException):\n            yield\n        self.synchronise = before\n"
})  # fmt: skip
wrong(
    "the inner block switches on",
    "a micro-batch in a block whose inner block has ended calls dist.all_reduce",
    {"self.synchronise = before": "self.synchronise = True"},
)
wrong("toggles", "a micro-batch in a block in a block calls dist.all_reduce", {
    "before, self.synchronise = self.synchronise, False": "self.synchronise = not self.synchronise",
    "self.synchronise = before": "self.synchronise = not self.synchronise",
})  # fmt: skip
wrong("off when called", "after no_sync() without with", {
    "    @contextlib.contextmanager\n    def no_sync(self):\n        before, self.synchronise = self.synchronise, False\n":
    "    def no_sync(self):\n        before, self.synchronise = self.synchronise, False\n        return self.block(before)\n\n"
    "    @contextlib.contextmanager\n    def block(self, before):\n"
})  # fmt: skip
wrong("a flag of the class", "a block of the other object", {
    "self.model, self.synchronise = model, True": "self.model = model", "self.synchronise": "Accumulating.synchronise",
    "    def __init__": "    synchronise = True\n\n    def __init__",
})  # fmt: skip
wrong("synchronises as the block ends", "the end of no_sync() calls dist.all_reduce, and may call nothing", {
    "            self.synchronise = before\n": "            self.synchronise = before\n            if hasattr(self, 'busy'):\n"
    "                self.finish()\n", FINISH: FINISH + "        self.busy = True\n"
})  # fmt: skip

# --- wrong: what is sent, and the numbers

wrong("sum", "is the sum over the ranks: divide by the world size", {MEAN: ""})
wrong("divides twice", "is divided by the world size twice", {MEAN: MEAN + MEAN})
wrong("three ranks always", "the gradient of", {"/= dist.get_world_size()": "/= 3"})
wrong(
    "never waits",
    "never waits for",
    {SUM: MEAN, MEAN: "                    dist.all_reduce(parameter.grad, async_op=True)\n"},
)
wrong("every gradient twice", "every gradient travels 2 times in a step", {SUM: SUM + MEAN + SUM})
wrong("in float16", "the gradient of", {SUM: "                    parameter.grad.copy_(parameter.grad.half())\n" + SUM})
wrong("divides by the micro-batches", "the gradient of", {
    INIT: INIT + "        self.count = 0\n", FINISH: FINISH + "        self.count += 1\n",
    MEAN: MEAN + "                    parameter.grad /= self.count\n            self.count = 0\n",
})  # fmt: skip
wrong("divides in every micro-batch", "is not what has added up on this rank", {
    "        if self.synchronise:\n            for": "        if True:\n            for", SUM: "                    if self.synchronise:\n    " + SUM
})  # fmt: skip
wrong("gradients thrown away", "is not what has added up on this rank", {
    FINISH: FINISH + "        if not self.synchronise:\n            self.model.zero_grad()\n"
})  # fmt: skip
wrong("every fourth micro-batch", "calls no all_reduce at all", {
    INIT: INIT + "        self.count = 0\n", "        if self.synchronise:\n            for": "        self.count += 1\n"
    "        if self.synchronise and self.count % 4 == 0:\n            for"
})  # fmt: skip


@wrong("the last micro-batch only", "is averaged for the last micro-batch only: average what has added up in `.grad`")
def last_micro_batch_only():
    class Accumulating:
        def __init__(self, model):
            self.synchronise = True
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(self.average)

        @contextlib.contextmanager
        def no_sync(self):
            before, self.synchronise = self.synchronise, False
            try:
                yield
            finally:
                self.synchronise = before

        def average(self, gradient):
            if self.synchronise:
                gradient = gradient / dist.get_world_size()
                dist.all_reduce(gradient)
            return gradient

        def finish(self):
            pass

    return (Accumulating,)


@wrong("sends every micro-batch later", "is not what has added up on this rank, which has to stay there")
def sends_every_micro_batch_later():
    class Accumulating:
        def __init__(self, model):
            self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.synchronise, self.kept = True, []

        @contextlib.contextmanager
        def no_sync(self):
            before, self.synchronise = self.synchronise, False
            try:
                yield
            finally:
                self.synchronise = before

        def finish(self):
            self.kept.append([parameter.grad.clone() for parameter in self.parameters])
            if not self.synchronise:
                for parameter in self.parameters:
                    parameter.grad = None
                return
            for parameter in self.parameters:
                parameter.grad.zero_()
            for gradients in self.kept:
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    dist.all_reduce(gradient)
                    parameter.grad += gradient / dist.get_world_size()
            self.kept = []

    return (Accumulating,)


# --- wrong: what else is changed

wrong("eval in the block", "is in another mode", {FINISH: FINISH + "        self.model.train(self.synchronise)\n"})
wrong(
    "frozen in the block",
    "has another `requires_grad` than before",
    {FINISH: FINISH + "        if not self.synchronise:\n            self.model.head.weight.requires_grad_(False)\n"},
)
wrong("grad mode off in the block", "leaves grad mode other than before", {
    "        before, self": "        torch.set_grad_enabled(False)\n        before, self",
    "            self.synchronise = before\n": "            self.synchronise = before\n            torch.set_grad_enabled(True)\n",
})  # fmt: skip
wrong(
    "the library",
    "DistributedDataParallel, which does the exercise",
    {INIT: INIT + "        self.ddp = torch.nn.parallel.DistributedDataParallel(model)\n"},
)
wrong(
    "swallows errors of arithmetic",
    "does not come out: use try … finally",
    {BLOCK: BLOCK.replace("        finally", "        except ArithmeticError:\n            pass\n        finally")},
)
wrong("an exception in an inner block switches on", "in a block whose inner block has ended calls dist.all_reduce", {
    BLOCK: "        try:\n            yield\n        except BaseException:\n            self.synchronise = True\n"
    "            raise\n        self.synchronise = before\n"
})  # fmt: skip
wrong("an attribute of the model stays", "has attributes that were added or replaced", {
    "before, self.synchronise = self.synchronise, False": "before, self.model.synchronise = self.synchronise, False",
    "self.model, self.synchronise = model, True": "self.model = model",
    "self.synchronise": "getattr(self.model, 'synchronise', True)", "getattr(self.model, 'synchronise', True) = before": "self.model.synchronise = before",
})  # fmt: skip
wrong(
    "not back after exceptions of others",
    "after an exception in a block",
    {
        BLOCK: "        try:\n            yield\n        except (Exception, KeyboardInterrupt, SystemExit):\n            self.synchronise = before\n            raise\n        self.synchronise = before\n"
    },
)
wrong(
    "gradients are cleared after an exception",
    "has another `.grad` than before",
    {
        BLOCK: BLOCK.replace(
            "        finally:",
            "        except BaseException:\n            self.model.zero_grad()\n            raise\n        finally:",
        )
    },
)


@right("hooks collect gradients until they may travel")
def hooks_collect():
    class Accumulating:
        def __init__(self, model):
            self.waiting, self.quiet = {}, 0
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.collect)

        def collect(self, parameter):
            self.waiting[parameter] = parameter.grad

        @contextlib.contextmanager
        def no_sync(self):
            self.quiet += 1
            try:
                yield
            finally:
                self.quiet -= 1

        def finish(self):
            if not self.quiet:
                for gradient in self.waiting.values():
                    dist.all_reduce(gradient)
                    gradient /= dist.get_world_size()
                self.waiting.clear()

    return (Accumulating,)
