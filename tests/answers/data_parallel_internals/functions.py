"""Exercise 5 of the lab on data parallelism: backward included. What is not here is in the official solution."""

from known_answers import right, wrong

COPY = "return tuple(tensor.to(device) for device in devices)"
SUM = "total = sum(gradient.to(ctx.device) for gradient in gradients)"
NONE = "return total, *[None] * ctx.copies"
KEEP = "ctx.devices = [part.device for part in parts]"
CAT = "return torch.cat([part.to(device) for part in parts])"
SPLIT = "parts = gradient.split(ctx.rows)"
GIVE = "return None, *[part.to(device) for part, device in zip(parts, ctx.devices, strict=True)]"
right("setup_context, no zeros for copies that nobody used, rows put into place", {
    "forward(ctx, tensor": "forward(tensor", "forward(ctx, device": "forward(device",
    "ctx.device, ctx.copies = tensor.device, len(devices)": "", "ctx.rows = [len(part) for part in parts]": "",
    COPY: "return tuple([tensor.clone() if device == tensor.device else tensor.to(device) for device in devices])\n\n"
    "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        ctx.set_materialize_grads(False)\n"
    "        ctx.device, ctx.copies = inputs[0].device, len(inputs) - 1",
    SUM: "total = sum(gradient.to(ctx.device) for gradient in gradients if gradient is not None)",
    KEEP: "whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)",
    CAT: "start = 0\n        for part in parts:\n            whole[start : start + len(part)].copy_(part)\n"
    "            start += len(part)\n        return whole\n\n"
    "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
    "        ctx.rows = [len(part) for part in inputs[1:]]\n"
    "        ctx.devices = [part.device for part in inputs[1:]]",
    GIVE: "wanted = zip(parts, ctx.devices, ctx.needs_input_grad[1:], strict=True)\n"
    "        return None, *[part.to(device) if needed else None for part, device, needed in wanted]",
})  # fmt: skip
right("added up in a copy, stacked by other functions", {
    COPY: "return (*map(tensor.to, devices),)",
    SUM: "total = gradients[0].to(ctx.device, copy=True)\n        for gradient in gradients[1:]:\n"
    "            total += gradient.to(ctx.device)",
    "    def backward(ctx, *": "    @torch.autograd.function.once_differentiable\n    def backward(ctx, *",
    CAT: "return (torch.vstack if parts[0].dim() > 1 else torch.hstack)([part.to(device) for part in parts])",
})  # fmt: skip
right("stacked and summed, narrowed, a zero-sized reminder of the tensor", {
    "ctx.device, ctx": "ctx.save_for_backward(tensor[:0].clone())\n        ctx.device, ctx",
    COPY: "return tuple([torch.empty_like(tensor, device=device).copy_(tensor) for device in devices])",
    SUM: "(reminder,) = ctx.saved_tensors\n"
    "        total = torch.stack([gradient.to(reminder.device) for gradient in gradients]).sum(0)",
    SPLIT: "edges = [sum(ctx.rows[:index]) for index in range(len(ctx.rows))]\n"
    "        parts = [gradient.narrow(0, edge, rows) for edge, rows in zip(edges, ctx.rows, strict=True)]",
})  # fmt: skip
wrong("copies where the tensor is", "not where it belongs", {COPY: COPY.replace("tensor.to(device)", "tensor.clone()")})
wrong("one copy", "returns no tuple of copies", {COPY: "return tensor.to(devices[-1])"})
wrong("gathered where part 0 is", "not where it belongs", {CAT: CAT.replace("to(device)", "to(parts[0].device)")})
wrong("over the host", "go through the host", {CAT: CAT.replace("part.to(device)", "part.cpu().to(device)")})
wrong("all by way of another GPU", "bytes that move in the forward of Gather", {
    CAT: "return torch.cat([part.to(parts[1 % len(parts)].device) for part in parts]).to(device)"
})  # fmt: skip
wrong("no None for the devices", "the backward of Broadcast ended with RuntimeError", {NONE: "return total"})
wrong("gradients added where they are", "to be on the same device", {SUM: "total = sum(gradients)"})
wrong("equal shares", "the backward of Gather ended with", {SPLIT: "parts = gradient.chunk(len(ctx.rows))"})
wrong("all gradients to all parts", "the backward of Gather ended", {GIVE: GIVE.replace("part.to", "gradient.to")})
wrong("gradients over the host", "in the backward of Gather tensors go through the host", {
    GIVE: GIVE.replace("part.to(device)", "part.cpu().to(device)")
})  # fmt: skip
wrong("the parts are kept", "Gather keeps a tensor alive", {KEEP: KEEP + "\n        ctx.parts = parts"})
wrong("the tensor is saved", "Broadcast keeps a tensor alive", {COPY: "ctx.save_for_backward(tensor)\n        " + COPY})
wrong("what was made is kept", "Gather keeps a tensor alive", {
    CAT: CAT.replace("return ", "ctx.made = ") + "\n        return ctx.made"
})  # fmt: skip
wrong("adds into what it gets", "changes a gradient that it gets", {
    SUM: "total = gradients[0]\n        for gradient in gradients[1:]:\n            total += gradient.to(ctx.device)"
})  # fmt: skip
wrong("sizes are kept in the class", "the backward of Gather ended with", {"ctx.rows": "Gather.rows"})
wrong(
    "devices are kept in the class",
    "the backward of Broadcast ended",
    {"ctx.device,": "Broadcast.device,", "ctx.device)": "Broadcast.device)"},
)
