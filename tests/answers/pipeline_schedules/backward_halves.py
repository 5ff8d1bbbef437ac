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
wrong("the gradient of x is missing", "no tensor", {"    return found[0]": "    return found[1:]"})
wrong(
    "the gradient is scaled in place", "changes `gradient`", {"    results = [": "    gradient *= 1.5\n    results = ["}
)
