"""Exercise 2 of the lab on memory and precision: activation checkpointing by hand."""

import torch
from known_answers import right, wrong
from torch.autograd.graph import saved_tensors_hooks


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function, ctx.random = function, torch.simgpu.get_rng_state()
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx, gradient):
        tensors = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        now = torch.simgpu.get_rng_state()
        torch.simgpu.set_rng_state(ctx.random)
        with torch.enable_grad():
            result = ctx.function(*tensors)
        torch.simgpu.set_rng_state(now)
        torch.autograd.backward(result, gradient)
        return None, *(one.grad for one in tensors)


def checkpointed(function, *tensors):
    return Again.apply(function, *tensors)


EQUAL = {
    f"{line} with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd puts grad mode back after a Function"
    for line in ("9: forward", "15: backward")
}
RUN = "        return function(*tensors)\n"
INPUTS = "tensors = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]"
SET = "        torch.simgpu.set_rng_state(ctx.random)\n"
BACK = "        torch.simgpu.set_rng_state(now)\n"
RETURN = "return None, *(one.grad for one in tensors)"
APPLY = "    return Again.apply(function, *tensors)"
BACKWARD = "torch.autograd.backward(result, gradient)"


# --- right, and written differently


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


# --- wrong

wrong("no checkpoint at all", "something is held beside", {APPLY: "    return function(*tensors)"})
wrong(
    "the library",
    "write it yourself",
    {
        APPLY: "    from torch.utils.checkpoint import checkpoint\n    return checkpoint(function, *tensors, use_reentrant=False)"
    },
)
wrong(
    "the library, reentrant",
    "write it yourself",
    {
        APPLY: "    from torch.utils.checkpoint import checkpoint\n    return checkpoint(function, *tensors, use_reentrant=True)"
    },
)
wrong("other random numbers", "dropout", {SET: ""})
wrong(
    "the CPU's random numbers",
    "dropout",
    {"torch.simgpu.get_rng_state": "torch.get_rng_state", "torch.simgpu.set_rng_state": "torch.set_rng_state"},
)
wrong(
    "always GPU 0's random numbers",
    "dropout",
    {
        "get_rng_state()": "get_rng_state(0)",
        "set_rng_state(ctx.random)": "set_rng_state(ctx.random, 0)",
        "set_rng_state(now)": "set_rng_state(now, 0)",
    },
)
wrong(
    "the gradient that came in is used up",
    "after backward, `gradient` has other numbers",
    {BACKWARD: BACKWARD + "\n        gradient.zero_()"},
)
wrong("the state is not put back", "random numbers are not as before", {BACK: ""})
wrong(
    "the graph is kept in forward",
    "something is held beside",
    {
        RUN: "        with torch.enable_grad():\n            ctx.result = function(*[one.detach().requires_grad_() for one in tensors])\n        return ctx.result.detach()\n"
    },
)
wrong(
    "copies of the inputs",
    "something is held beside",
    {
        "ctx.save_for_backward(*tensors)": "ctx.save_for_backward(*[one.clone().requires_grad_(one.requires_grad) for one in tensors])"
    },
)
wrong(
    "only the first gradient",
    "gets no gradient",
    {RETURN: "return (None, tensors[0].grad) + (None,) * (len(tensors) - 1)"},
)
wrong(
    "every tensor needs one",
    "nobody asked",
    {
        INPUTS: "tensors = [one.detach().requires_grad_() for one in ctx.saved_tensors]",
        RETURN: "[setattr(old, 'grad', new.grad) for old, new in zip(ctx.saved_tensors, tensors) if not old.requires_grad]\n        return None, *(one.grad for one in tensors)",
    },
)
wrong(
    "parameters forgotten",
    "gets no gradient",
    {
        BACKWARD: "asked = [one for one in tensors if one.requires_grad]\n        for one, found in zip(asked, torch.autograd.grad(result, asked, gradient)):\n            one.grad = found"
    },
)
wrong(
    "three runs",
    "once more in the backward",
    {
        "            result = ctx.function(*tensors)\n": "            ctx.function(*tensors)\n            torch.simgpu.set_rng_state(ctx.random)\n            result = ctx.function(*tensors)\n"
    },
)
wrong(
    "twice in forward",
    "once in the forward pass",
    {
        RUN: "        function(*tensors)\n        torch.simgpu.set_rng_state(ctx.random)\n        return function(*tensors)\n"
    },
)
wrong("gradient doubled", "twice as large with each piece", {BACKWARD: "torch.autograd.backward(result, 2 * gradient)"})
wrong(
    "the gradient is left out",
    "does not have the right numbers",
    {BACKWARD: "torch.autograd.backward(result, torch.ones_like(result))"},
)
wrong("no graph in the second run", "raised RuntimeError", {"with torch.enable_grad():": "if True:"})
wrong(
    "the result is detached",
    "autograd can go back from",
    {APPLY: "    return Again.apply(function, *tensors).detach()"},
)
wrong("a list", "autograd can go back from", {APPLY: "    return [Again.apply(function, *tensors)]"})
wrong(
    "runs under no_grad twice",
    "under torch.no_grad()",
    {
        APPLY: "    if not torch.is_grad_enabled():\n        function(*tensors)\n    return Again.apply(function, *tensors)"
    },
)
wrong(
    "a graph under no_grad",
    "under torch.no_grad()",
    {
        APPLY: "    if not torch.is_grad_enabled():\n        return Again.apply(function, *tensors).requires_grad_()\n    return Again.apply(function, *tensors)"
    },
)
wrong(
    "inputs frozen",
    "requires_grad",
    {
        APPLY: "    result = Again.apply(function, *tensors)\n    for one in tensors:\n        if one.is_leaf:\n            one.requires_grad_(False)\n    return result"
    },
)
wrong(
    "one seed for all",
    "leaves the seed of torch's random numbers other than before",
    {
        RUN: "        torch.simgpu.manual_seed_all(0)\n        return function(*tensors)\n",
        SET: "        torch.simgpu.manual_seed_all(0)\n",
    },
)
wrong("a third tensor gets no gradient", "is every tensor's gradient returned", {
    RETURN: "return None, *([one.grad for one in tensors][:2] + [None] * (len(tensors) - 2))"
})  # fmt: skip
wrong("the second graph is kept", "of more than one piece are there at the same time", {
    BACKWARD: "torch.autograd.backward(result, gradient, retain_graph=True)\n        ctx.again = result"
})  # fmt: skip
wrong("grad mode is switched on", "under torch.no_grad()", {
    APPLY: "    with torch.enable_grad():\n        return Again.apply(function, *tensors)"
})  # fmt: skip


@wrong("parameters' gradients are set, and not added", "that of this pass alone: add it to the one that is there")
def set_not_added():
    class OnceMore(Again):
        @staticmethod
        def backward(ctx, gradient):
            function, reached = ctx.function, []

            def watched(*tensors):
                result = function(*tensors)
                nodes = [result.grad_fn]
                for node in nodes:
                    nodes += [one for one, _ in node.next_functions if one is not None and one not in nodes]
                leaves = [node.variable for node in nodes if hasattr(node, "variable")]
                reached.extend(one for one in leaves if all(one is not given for given in tensors))
                for one in reached:
                    one.grad = None
                return result

            ctx.function = watched
            return Again.backward(ctx, gradient)

    def checkpointed(function, *tensors):
        return OnceMore.apply(function, *tensors)

    return (checkpointed,)
