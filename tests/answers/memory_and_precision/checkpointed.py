"""Exercise 2 of the lab on memory and precision: activation checkpointing. What is not here is in the official solution."""

import torch
from known_answers import right, wrong
from torch.autograd.graph import saved_tensors_hooks

APPLY, RUN = "    return Again.apply(function, *tensors)", "            result = ctx.function(*tensors)\n"
BACKWARD = "torch.autograd.backward(result, gradient)"
right("all tensors ask for a gradient in the second run", {"requires_grad_(one.requires_grad)": "requires_grad_()"})
right(
    "ctx keeps the tensors as an attribute",
    {"ctx.save_for_backward(*tensors)": "ctx.saved = tensors", "ctx.saved_tensors": "ctx.saved"},
)


@right("without an autograd Function: hooks that compute again when the first tensor is asked for")
def hooks():
    def checkpointed(function, *tensors):
        if not torch.is_grad_enabled():
            return function(*tensors)
        state = torch.simgpu.get_rng_state()
        count, stored = [0], {}

        class Place:
            def __init__(self, number):
                self.number = number

        def pack(_tensor):
            count[0] += 1
            return Place(count[0] - 1)

        def unpack(place):
            if not stored:
                numbers = []

                def keep(tensor):
                    numbers.append(tensor.detach())
                    return tensor.detach()

                before = torch.simgpu.get_rng_state()
                torch.simgpu.set_rng_state(state)
                with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
                    function(*(one.detach().requires_grad_(one.requires_grad) for one in tensors))
                torch.simgpu.set_rng_state(before)
                stored.update(enumerate(numbers))
            return stored.pop(place.number)

        with saved_tensors_hooks(pack, unpack):
            return function(*tensors)

    return (checkpointed,)


@right("gradients asked for, with fork_rng")
def asked():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, state, count, *tensors):
            ctx.save_for_backward(*tensors)
            ctx.rest = function, state
            return function(*tensors)

        @staticmethod
        def backward(ctx, gradient):
            function, state = ctx.rest
            inputs = []
            for one in ctx.saved_tensors:
                copy = one.detach()
                copy.requires_grad = one.requires_grad
                inputs.append(copy)
            with torch.random.fork_rng(devices=[gradient.device], device_type="simgpu"):
                torch.simgpu.set_rng_state(state)
                with torch.set_grad_enabled(True):
                    result = function(*inputs)
            result.backward(gradient)
            return (None, None, None, *[one.grad if one.requires_grad else None for one in inputs])

    def checkpointed(function, *tensors):
        with torch.no_grad():
            state = torch.simgpu.get_rng_state(tensors[0].device).clone()
        return Twice.apply(function, state, len(tensors), *tensors)

    return (checkpointed,)


@right("the product with the gradient, summed")
def product():
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, *tensors):
            ctx.again = function
            ctx.random = torch.simgpu.get_rng_state()
            ctx.save_for_backward(*tensors)
            with torch.no_grad():
                return function(*tensors)

        @staticmethod
        @torch.enable_grad()
        def backward(ctx, gradient):
            saved = [one.detach() for one in ctx.saved_tensors]
            for one, needed in zip(saved, ctx.needs_input_grad[1:], strict=True):
                one.requires_grad_(needed)
            before = torch.simgpu.get_rng_state()
            try:
                torch.simgpu.set_rng_state(ctx.random)
                result = ctx.again(*saved)
            finally:
                torch.simgpu.set_rng_state(before)
            (result * gradient).sum().backward()
            return (None, *(one.grad for one in saved))

    def checkpointed(function, *tensors):
        return Again.apply(function, *tensors)

    return (checkpointed,)


wrong("a detached result", "autograd can go back from", {APPLY: APPLY + ".detach()"})
wrong("a list", "autograd can go back from", {APPLY: "    return [Again.apply(function, *tensors)]"})
wrong("no graph in the second run", "how the backward pass ends", {"with torch.enable_grad():": "if True:"})
wrong("three runs", "the runs of each function in all", {
    RUN: "            ctx.function(*tensors)\n            torch.simgpu.set_rng_state(ctx.random)\n" + RUN
})  # fmt: skip
wrong("gradients doubled", "the gradient of", {BACKWARD: "torch.autograd.backward(result, 2 * gradient)"})
wrong("a third tensor gets no gradient", "the gradient of tensor 2", {
    "*(one.grad for one in tensors)": "*([one.grad for one in tensors][:2] + [None] * (len(tensors) - 2))"
})  # fmt: skip
wrong("one seed for all", "the random numbers that the GPU draws after", {
    "        return function(*tensors)\n": "        torch.simgpu.manual_seed_all(0)\n        return function(*tensors)\n",
    "torch.simgpu.set_rng_state(ctx.random)": "torch.simgpu.manual_seed_all(0)",
})  # fmt: skip
