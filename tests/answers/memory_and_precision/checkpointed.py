"""Exercise 2 of the lab on memory and precision: activation checkpointing. What is not here is in the official solution."""

from known_answers import right, wrong

APPLY, RUN = "    return Again.apply(function, *tensors)", "            result = ctx.function(*tensors)\n"
BACKWARD = "torch.autograd.backward(result, gradient)"
right(
    "ctx keeps the tensors as an attribute",
    {"ctx.save_for_backward(*tensors)": "ctx.saved = tensors", "ctx.saved_tensors": "ctx.saved"},
)
right("the product with the gradient, summed; what a gradient is needed for", {
    "requires_grad_(one.requires_grad) for one in ctx.saved_tensors":
        "requires_grad_(need) for one, need in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)",
    BACKWARD: "with torch.enable_grad():\n            (result * gradient).sum().backward()",
})  # fmt: skip
right("with fork_rng; None where no gradient is asked for", {
    "        now = torch.simgpu.get_rng_state()\n": "",
    "        torch.simgpu.set_rng_state(now)\n": "",
    "        torch.simgpu.set_rng_state(ctx.random)\n        with torch.enable_grad():\n":
        "        with torch.random.fork_rng([gradient.device], device_type='simgpu'), torch.enable_grad():\n"
        "            torch.simgpu.set_rng_state(ctx.random)\n",
    "*(one.grad for one in tensors)": "*[one.grad if one.requires_grad else None for one in tensors]",
})  # fmt: skip


wrong("a detached result", "autograd can go back from", {APPLY: APPLY + ".detach()"})
wrong("a list", "autograd can go back from", {APPLY: "    return [Again.apply(function, *tensors)]"})
wrong("autograd.backward without the gradient", "how the backward pass ends", {"(result, gradient)": "(result)"})
wrong("three runs", "the runs of each function in all", {
    RUN: "            ctx.function(*tensors)\n            torch.simgpu.set_rng_state(ctx.random)\n" + RUN
})  # fmt: skip
wrong("one seed for all", "the random numbers that the GPU draws after", {
    "        return function(*tensors)\n": "        torch.simgpu.manual_seed_all(0)\n        return function(*tensors)\n",
    "torch.simgpu.set_rng_state(ctx.random)": "torch.simgpu.manual_seed_all(0)",
})  # fmt: skip
