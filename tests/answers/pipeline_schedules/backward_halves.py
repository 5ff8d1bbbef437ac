"""Exercise 2 of the lab on pipeline schedules: I and W. What is not here is in the official solution."""

import torch
from known_answers import right, wrong


@right("hooks on what the layers return")
def hooks():
    def forward(stage, x):
        kept = []
        x = x.clone().requires_grad_()
        y = x
        for layer in stage:
            came, y = y, layer(y)
            if isinstance(layer, torch.nn.Linear):
                entry = {"layer": layer, "came": came.detach()}
                y.register_hook(lambda g, entry=entry: entry.update(g=g))
                kept.append(entry)
        return y, (x, y, kept)

    def backward_input(kept, gradient):
        x, y, _ = kept
        return torch.autograd.grad(y, x, gradient)[0]

    def backward_weight(kept):
        for entry in kept[2]:
            layer, g = entry["layer"], entry["g"].reshape(-1, entry["g"].shape[-1])
            found = torch.einsum("no,ni->oi", g, entry["came"].reshape(len(g), -1))
            layer.weight.grad = found if layer.weight.grad is None else layer.weight.grad.add(found)
            if layer.bias is not None:
                layer.bias.grad = (0 if layer.bias.grad is None else layer.bias.grad) + g.sum(dim=0)

    return forward, backward_input, backward_weight


@right("one small graph for each layer")
def small_graphs():
    def forward(stage, x):
        steps = []
        for layer in stage:
            came = x.detach().requires_grad_()
            x = layer(came)
            steps.append((layer, came, x))
        return x.detach(), steps

    def backward_input(kept, gradient):
        for place, (layer, came, went) in reversed(list(enumerate(kept))):
            g = gradient
            gradient = torch.autograd.grad(went, came, g)[0]
            kept[place] = (layer, came.detach(), g)
        return gradient

    def backward_weight(kept):
        for layer, came, g in kept:
            for name, found in (("weight", None), ("bias", None)):
                parameter = getattr(layer, name, None)
                if parameter is None:
                    continue
                found = g.sum((0, 1)) if name == "bias" else torch.tensordot(g, came, dims=([0, 1], [0, 1]))
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad += found

    return forward, backward_input, backward_weight


@right("an autograd function that notes W")
def noting():
    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer, later):
            ctx.x, ctx.layer, ctx.later = x.detach(), layer, later
            return torch.nn.functional.linear(x, layer.weight, layer.bias)

        @staticmethod
        def backward(ctx, g):
            ctx.later.append((ctx.layer, ctx.x, g))
            return g @ ctx.layer.weight, None, None

    def forward(stage, x):
        later, start = [], x.clone().detach().requires_grad_(True)
        y = start
        for layer in stage:
            y = Noting.apply(y, layer, later) if isinstance(layer, torch.nn.Linear) else layer(y)
        return y.detach().clone(), (start, y, later)

    def backward_input(kept, gradient):
        start, y, _ = kept
        y.backward(gradient)
        return start.grad

    def backward_weight(kept):
        for layer, x, g in kept[2]:
            found = sum(one.t() @ two for one, two in zip(g, x, strict=True))
            layer.weight.grad = found if layer.weight.grad is None else layer.weight.grad + found
            if layer.bias is not None:
                found = g.sum(1).sum(0)
                layer.bias.grad = found if layer.bias.grad is None else layer.bias.grad + found

    return forward, backward_input, backward_weight


HALF_I = '    found = torch.autograd.grad(kept.pop("y"), [kept["x"], *results], gradient)\n    kept["gradients"] = found[1:]\n    return found[0]'
HALF_W = "    for (layer, before, _), gradient in zip(kept"
wrong(
    "backward in I",
    "more than one matrix product",
    {HALF_I: '    kept["y"].backward(gradient)\n    return kept["x"].grad', HALF_W: "    return\n" + HALF_W},
)
wrong("the naive W", "more than one matrix product", {
    HALF_I: '    kept["g"] = gradient\n    return torch.autograd.grad(kept["y"], kept["x"], gradient, retain_graph=True)[0]',
    HALF_W: '    parameters = [p for one in kept["layers"] for p in one[0].parameters()]\n'
       '    for p, found in zip(parameters, torch.autograd.grad(kept["y"], parameters, kept["g"])):\n'
       "        p.grad = found if p.grad is None else p.grad + found\n    return\n" + HALF_W,
})  # fmt: skip
wrong("all in I, W only adds", "more than one matrix product", {
    HALF_I: '    parameters = [p for one in kept["layers"] for p in one[0].parameters()]\n'
       '    found = torch.autograd.grad(kept["y"], [kept["x"], *parameters], gradient)\n'
       '    kept["found"] = list(zip(parameters, found[1:]))\n    return found[0]',
    HALF_W: '    for p, found in kept["found"]:\n        p.grad = found if p.grad is None else p.grad + found\n    return\n' + HALF_W,
})  # fmt: skip
wrong(
    "y alone",
    "does not return two things",
    {'    return y.detach(), {"x": x, "y": y, "layers": layers}': "    return y.detach()"},
)
wrong("the gradient of x is missing", "no tensor", {"    return found[0]": "    return found[1:]"})
wrong(
    "the gradient of the first result",
    "the gradient of x of micro-batch 0",
    {"    return found[0]": "    return found[1]"},
)
wrong(
    "the gradient is scaled in place", "changes `gradient`", {"    results = [": "    gradient *= 1.5\n    results = ["}
)
wrong("a product too many", "W (backward_weight) does more than one", {
    "        gradient = gradient.flatten(0, 1)\n": "        gradient = gradient.flatten(0, 1)\n        layer(before)\n"
})  # fmt: skip
wrong("the sequence's last token only", "raised", {"gradient.flatten(0, 1)\n": "gradient[:, -1]\n"})
