"""Exercise 4 of the lab on DistributedDataParallel. What is not here is in the official solution."""

import contextlib

import torch
import torch.distributed as dist
from known_answers import right, wrong

SUM = "                    dist.all_reduce(parameter.grad)\n"
MEAN = "                    parameter.grad /= dist.get_world_size()\n"


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


wrong("never waits", "never waits for all_reduce", {SUM: SUM.replace("grad)", "grad, async_op=True)")})
wrong("divides what travels", "changes a tensor while all_reduce is still using it", {
    SUM + MEAN: SUM.replace("dist.", "work = dist.").replace("grad)", "grad, async_op=True)") + MEAN
    + "                    work.wait()\n"
})  # fmt: skip
wrong("no context manager", "does not support the context manager protocol", {"    @contextlib.contextmanager\n": ""})
