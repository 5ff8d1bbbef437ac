"""Exercise 5 of the lab on data parallelism: backward included. What is not here is in the official solution."""

from known_answers import right, wrong

KEEP = "ctx.devices = [part.device for part in parts]"
CAT = "return torch.cat([part.to(device) for part in parts])"
SPLIT = "parts = gradient.split(ctx.rows)"
GIVE = "return None, *[part.to(device) for part, device in zip(parts, ctx.devices, strict=True)]"
right("setup_context, no gradient for what is not trained, rows put into place", {
    "forward(ctx, device": "forward(device",
    "ctx.rows = [len(part) for part in parts]": "",
    KEEP: "whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)",
    CAT: "start = 0\n        for part in parts:\n            whole[start : start + len(part)].copy_(part)\n"
    "            start += len(part)\n        return whole\n\n"
    "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
    "        ctx.rows = [len(part) for part in inputs[1:]]\n"
    "        ctx.devices = [part.device for part in inputs[1:]]",
    GIVE: "wanted = zip(parts, ctx.devices, ctx.needs_input_grad[1:], strict=True)\n"
    "        return None, *[part.to(device) if needed else None for part, device, needed in wanted]",
})  # fmt: skip
right("stacked by other functions", {
    "    def backward(ctx, g": "    @torch.autograd.function.once_differentiable\n    def backward(ctx, g",
    CAT: "return (torch.vstack if parts[0].dim() > 1 else torch.hstack)([part.to(device) for part in parts])",
})  # fmt: skip
right("narrowed, a zero-sized reminder of a part", {
    KEEP: KEEP + "\n        ctx.save_for_backward(parts[0][:0].clone())",
    SPLIT: "edges = [sum(ctx.rows[:index]) for index in range(len(ctx.rows))]\n"
    "        parts = [gradient.narrow(0, edge, rows) for edge, rows in zip(edges, ctx.rows, strict=True)]",
})  # fmt: skip
wrong("a list", "returns no tensor", {CAT: "return tuple(part.to(device) for part in parts)"})
wrong("over the host", "go through the host", {CAT: CAT.replace("part.to(device)", "part.cpu().to(device)")})
wrong("equal shares", "the backward of Gather ended with", {SPLIT: "parts = gradient.chunk(len(ctx.rows))"})
wrong("the parts are kept", "Gather keeps a tensor alive", {KEEP: KEEP + "\n        ctx.parts = parts"})
wrong("sizes are kept in the class", "the backward of Gather ended with", {"ctx.rows": "Gather.rows"})
