"""What the exercises share: how f and g go wrong, and a layer in two steps of training, seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from checks.engine import leaves, refuse, watched
from checks.engine.inside import outcome_of_any
from checks.engine.plain import kind_of

_NOBODYS = "the check could not use what your function gave it"  # how a sentence begins about an error of torch's own
_F, _G = "dist.all_reduce(gradient)", "dist.all_reduce(y)"  # f sums up backward, g forward
NO_F, MEAN_F = {_F: "pass"}, {_F: "dist.all_reduce(gradient, dist.ReduceOp.AVG)"}
NO_G, MEAN_G = {_G: "pass"}, {_G: "dist.all_reduce(y, dist.ReduceOp.AVG)"}
_BACK = "    def backward(ctx, gradient):\n        return gradient"
SUM_BACK_G = {_BACK: _BACK.replace("return", f"gradient = gradient.clone()\n        {_F}\n        return")}


def handed_in(calls: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted(f"{call['name']} of {call['bytes']} bytes" for call in calls)) or "nothing"


def tensor(value: Any, shape: Sequence[int], what: str = "the result") -> torch.Tensor:
    """The same, if it is a tensor of this shape, at which a backward pass can begin."""
    refuse(value is None, f"{what} is missing: is there a return?")
    refuse(not isinstance(value, torch.Tensor), f"{what} is no tensor", measured=kind_of(value))
    refuse(value.shape != (*shape,), f"{what} has another shape", measured=list(value.shape), expected=[*shape])
    refuse(not value.requires_grad, f"{what} has lost its way back: nothing before it gets a gradient")
    return value


def train(
    layer: Callable[[torch.Tensor], torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    forward: Callable[[Sequence[Mapping[str, Any]]], Any] = handed_in,
) -> dict[str, Any]:
    """What is seen of a layer in two steps of training: the numbers, and what this rank hands in.

    It is called with all inputs, as in a network, and then come the backward passes. Before the second step, which has
    the first input only, all numbers are changed in place; gradients add up.

    Args:
        forward: what is told of the calls in a forward pass.
    """
    seen: dict[str, Any] = {}
    first = next(iter(inputs))
    for step, given in (("", inputs), (" in a second step, with other numbers in its tensors", {first: inputs[first]})):
        results = {}
        for name, x in given.items():
            with leaves(**{name: x}, **weights), watched() as wire:
                results[name] = layer(x.view_as(x))  # (inside a network x is no leaf)
            seen[f"what is handed in forward for {name}{step}"] = forward(wire.calls)
        for name, y in results.items():
            seen[f"the result for {name}{step}"] = y.detach().clone()
        for name, y in reversed(results.items()):
            upstream = torch.randn(y.shape, dtype=y.dtype)
            with leaves(**{"the result's gradient": upstream}), watched() as wire:
                try:
                    y.backward(upstream)
                except Exception as error:
                    found = outcome_of_any(error, "the backward pass")
                    found.record["sentence"] = found.record["sentence"].replace(_NOBODYS, "the backward pass failed")
                    raise found from error
            seen[f"what is handed in backward for {name}{step}"] = handed_in(wire.calls)
        for name, one in (given | weights).items():
            seen[f"the gradient of {name}{step}"] = "there is none" if one.grad is None else one.grad.clone()
            with torch.no_grad():
                one *= 0.5
    return seen
