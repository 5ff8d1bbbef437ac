"""Exercise 5 of the lab on data parallelism: Broadcast and Gather, backward included."""

import torch
from known_answers import right, wrong


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, *devices):
        ctx.device, ctx.copies = tensor.device, len(devices)
        return tuple(tensor.to(device) for device in devices)

    @staticmethod
    def backward(ctx, *gradients):
        total = sum(gradient.to(ctx.device) for gradient in gradients)
        return total, *[None] * ctx.copies


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, device, *parts):
        ctx.rows = [len(part) for part in parts]
        ctx.devices = [part.device for part in parts]
        return torch.cat([part.to(device) for part in parts])

    @staticmethod
    def backward(ctx, gradient):
        parts = gradient.split(ctx.rows)
        return None, *[part.to(device) for part, device in zip(parts, ctx.devices, strict=True)]


EQUAL = {
    f"{line} with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd puts grad mode back after a Function"
    for line in ("6: forward", "11: backward", "18: forward", "24: backward")
} | {
    "26: `zip(parts, ctx.devices, strict=True)` without strict": "there are as many parts as devices",
    "26: True → False": "there are as many parts as devices",
}
COPY = "        return tuple(tensor.to(device) for device in devices)\n"
SUM = "        total = sum(gradient.to(ctx.device) for gradient in gradients)\n"
NONE = "        return total, *[None] * ctx.copies\n"
KEEP = "        ctx.devices = [part.device for part in parts]\n"
CAT = "        return torch.cat([part.to(device) for part in parts])\n"
SPLIT = "        parts = gradient.split(ctx.rows)\n"
GIVE = "        return None, *[part.to(device) for part, device in zip(parts, ctx.devices, strict=True)]\n"


# --- right, and written differently


@right("setup_context, no zeros for copies that nobody used, rows put into place")
def setup_context():
    class Broadcast(torch.autograd.Function):
        @staticmethod
        def forward(tensor, *devices):
            return tuple([tensor.clone() if device == tensor.device else tensor.to(device) for device in devices])

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(False)
            ctx.where = inputs[0].device
            ctx.number = len(inputs)

        @staticmethod
        def backward(ctx, *coming):
            total = None
            for gradient in coming:
                if gradient is not None:
                    here = gradient.to(ctx.where)
                    total = here if total is None else total + here
            return (total,) + (None,) * (ctx.number - 1)

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(device, *parts):
            rows = sum(part.size(0) for part in parts)
            whole = torch.empty((rows, *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)
            start = 0
            for part in parts:
                whole[start : start + part.size(0)].copy_(part)
                start += part.size(0)
            return whole

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.parts = [(part.size(0), part.device) for part in inputs[1:]]

        @staticmethod
        def backward(ctx, gradient):
            found, start = [None], 0
            for number, (rows, device) in enumerate(ctx.parts):
                wanted = ctx.needs_input_grad[number + 1]
                found.append(gradient[start : start + rows].to(device) if wanted else None)
                start += rows
            return tuple(found)

    return Broadcast, Gather


@right("each is the other's backward")
def each_others():
    class Scatter:
        @staticmethod
        def rows(tensor, sizes, devices):
            return [part.to(device) for part, device in zip(tensor.split(sizes), devices, strict=True)]

    class Broadcast(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, *devices):
            ctx.input_device = tensor.get_device()
            return (*map(tensor.to, devices),)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *gradients):
            device = torch.device(gradients[0].device.type, ctx.input_device)
            total = gradients[0].to(device, copy=True)
            for gradient in gradients[1:]:
                total += gradient.to(device)
            return (total, *(None for _ in gradients))

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, device, *parts):
            ctx.about = [part.shape[0] for part in parts], [part.device for part in parts]
            return torch.vstack([p.to(device) for p in parts]) if parts[0].dim() > 1 else torch.hstack([
                p.to(device) for p in parts
            ])  # fmt: skip

        @staticmethod
        def backward(ctx, gradient):
            return None, *Scatter.rows(gradient, *ctx.about)

    return Broadcast, Gather


@right("stacked and summed, narrowed, a zero-sized reminder of each part")
def reminders():
    class Broadcast(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, *devices):
            ctx.save_for_backward(tensor[:0].clone())
            ctx.devices = devices
            copies = []
            for device in devices:
                copy = torch.empty_like(tensor, device=device)
                copy.copy_(tensor)
                copies.append(copy)
            return tuple(copies)

        @staticmethod
        def backward(ctx, *gradients):
            (reminder,) = ctx.saved_tensors
            here = torch.stack([gradient.to(reminder.device) for gradient in gradients])
            return here.sum(0), *(None,) * len(ctx.devices)

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, device, *parts):
            edges = [0]
            for part in parts:
                edges.append(edges[-1] + part.shape[0])
            ctx.edges, ctx.places = edges, tuple(str(part.device) for part in parts)
            return torch.cat(tuple(part.to(device=device) for part in parts), dim=0)

        @staticmethod
        def backward(ctx, gradient):
            pieces = [gradient.narrow(0, a, b - a) for a, b in zip(ctx.edges, ctx.edges[1:], strict=False)]
            return (None, *(piece.to(place) for piece, place in zip(pieces, ctx.places, strict=True)))

    return Broadcast, Gather


# --- wrong: forward

wrong(
    "all copies on the tensor's device",
    "copy 1 of Broadcast is on the wrong device",
    {COPY: COPY.replace("tensor.to(device)", "tensor.clone()")},
)
wrong(
    "a list",
    "Broadcast.apply returns a tuple with a copy for each device",
    {COPY: "        return tensor.to(devices[-1])\n"},
)
wrong("one copy too few", "returns a copy for each device", {COPY: COPY.replace("in devices)", "in devices[1:])")})
wrong(
    "rows out of order",
    "is not the rows of all parts, those of part 0 first",
    {CAT: CAT.replace("in parts", "in reversed(parts)")},
)
wrong(
    "gathered where part 0 is",
    "what Gather returns is on the wrong device",
    {CAT: CAT.replace("part.to(device)", "part.to(parts[0].device)")},
)
wrong("over the host", "go through the host", {CAT: CAT.replace("part.to(device)", "part.cpu().to(device)")})
wrong("everything by way of part 0", "other bytes move than have to", {
    CAT: "        return torch.cat([part.to(parts[-1].device) for part in parts]).to(device)\n"
})  # fmt: skip
wrong("detached", "knows nothing of what it was made from", {
    COPY: COPY + "\n    @classmethod\n    def apply(cls, tensor, *devices):\n        return tuple(tensor.detach().to(device) for device in devices)\n",
})  # fmt: skip
wrong("autograd does it", "was not made by its own forward", {
    COPY: COPY + "\n    @classmethod\n    def apply(cls, tensor, *devices):\n        return tuple(tensor.to(device) for device in devices)\n",
})  # fmt: skip
wrong("the library", "which does the exercise", {
    CAT: "        return torch.nn.parallel.comm.gather(parts, 0, device)\n"
})  # fmt: skip

# --- wrong: backward

wrong(
    "the gradient of the first copy",
    "is the gradient of one copy only",
    {SUM: "        total = gradients[0].to(ctx.device)\n"},
)
wrong("the mean", "is the mean over the copies", {NONE: "        return total / ctx.copies, *[None] * ctx.copies\n"})
wrong("no None for the devices", "the backward of Broadcast ended with RuntimeError", {NONE: "        return total\n"})
wrong(
    "gradients added where they are",
    "the backward of Broadcast ended with RuntimeError: Expected all tensors to be on the same device",
    {SUM: "        total = sum(gradients)\n"},
)
wrong(
    "no backward of Gather",
    "the backward of Gather ended with KeyError",
    {SPLIT + GIVE: "        raise KeyError('backward')\n"},
)
wrong(
    "equal shares",
    "the backward of Gather ended with RuntimeError",
    {SPLIT: "        parts = gradient.chunk(len(ctx.rows))\n"},
)
wrong(
    "the whole gradient to every part",
    "the backward of Gather ended with RuntimeError",
    {GIVE: GIVE.replace("part.to(device)", "gradient.to(device)")},
)
wrong(
    "gradients in the other order",
    "the backward of Gather ended with RuntimeError",
    {SPLIT: SPLIT.replace("gradient.split(ctx.rows)", "gradient.split(ctx.rows)[::-1]")},
)
wrong(
    "gradients over the host",
    "in the backward of Gather tensors go through the host",
    {GIVE: GIVE.replace("part.to(device)", "part.cpu().to(device)")},
)
wrong("gradients go back and forth", "in the backward of Broadcast other bytes move", {
    SUM: "        total = sum(gradient.to(gradients[-1].device) for gradient in gradients).to(ctx.device)\n"
})  # fmt: skip
wrong(
    "the parts are kept",
    "Gather keeps tensors for its backward",
    {KEEP: KEEP + "        ctx.save_for_backward(*parts)\n"},
)
wrong(
    "the parts are kept in ctx", "Gather keeps tensors for its backward", {KEEP: KEEP + "        ctx.parts = parts\n"}
)
wrong(
    "the tensor is kept", "Broadcast keeps tensors for its backward", {COPY: "        ctx.kept = tensor + 0\n" + COPY}
)
wrong("adds into what it gets", "has other numbers than before", {
    SUM: "        total = gradients[0]\n        for gradient in gradients[1:]:\n            total += gradient.to(ctx.device)\n"
})  # fmt: skip
wrong("sizes are kept in the class", "the backward of Gather ended with RuntimeError", {
    "ctx.rows = ": "Gather.rows = ", "gradient.split(ctx.rows)": "gradient.split(Gather.rows)",
})  # fmt: skip
wrong("devices are kept in the class", "the backward of Broadcast ended with RuntimeError", {
    "ctx.device": "Broadcast.device",
})  # fmt: skip
wrong("what was made is kept", "keeps alive what it was given, or has returned", {
    CAT: CAT.replace("return ", "ctx.made = ") + "        return ctx.made\n"
})  # fmt: skip
wrong("the tensor is saved, which is the first copy too", "keeps alive what it was given, or has returned", {
    COPY: "        ctx.save_for_backward(tensor)\n" + COPY
})  # fmt: skip
