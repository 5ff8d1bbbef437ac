"""Check of the two halves of a backward pass: gradients of one process, in a pipeline's order, and no product twice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from checks.engine import Reference, exercise, leaves, refuse

OFFICIAL = Reference("pipeline_schedules", "forward backward_input backward_weight", {
    "what was in .grad before is replaced: add to it": {"else parameter.grad + new": "else new"},
    "biases get no gradient": {"if layer.bias is not None": "if False"},
    "a bias's gradient is the mean over the tokens, not the sum": {"gradient.sum(0)": "gradient.mean(0)"},
    "a weight's gradient is divided by the number of tokens: the loss has seen to that":
        {"gradient.t() @ before.flatten(0, 1)": "gradient.t() @ before.flatten(0, 1) / len(gradient)"},
    "W uses what went into the layer in the last forward pass, not in its own micro-batch's: keep it in `kept`":
        {"        if isinstance": "        layer.seen = before.detach()\n        if isinstance",
         "before.flatten(0, 1)": "layer.seen.flatten(0, 1)"},
    "W uses the gradients of the last I, not those of its own micro-batch: keep them in `kept`":
        {'kept["gradients"] = found[1:]': 'kept["layers"][0][0].found = found[1:]',
         'kept["gradients"],': 'kept["layers"][0][0].found,'},
})  # fmt: skip


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    return {"layers": 3 if number == 0 else rng.randint(1, 5), "micro_batches": 1 if number == 0 else rng.randint(1, 4),
            "bias": number == 0 or rng.random() < 0.5, "before": number > 0 and rng.random() < 0.5,
            "seed": rng.randrange(2**31)}  # fmt: skip


@exercise(OFFICIAL, draw, title="The backward pass in two halves", difficulty=2, minutes=20, timeout=30)
def backward_halves(
    case: dict[str, Any], forward: Callable[..., Any], input_half: Callable[..., Any], weight_half: Any
) -> Any:
    """Judge ``forward(stage, x)``, ``backward_input(kept, gradient)`` and ``backward_weight(kept)``."""
    torch.manual_seed(case["seed"])
    widths = torch.randint(2, 7, (case["layers"] + 1,)).tolist()
    pieces: list[nn.Module] = []
    for i in range(case["layers"]):
        pieces += [nn.Linear(widths[i], widths[i + 1], bias=case["bias"] or i % 2 == 1), (nn.GELU(), nn.Tanh())[i % 2]]
    stage = nn.Sequential(*pieces[: -1 if case["seed"] % 2 else None]).double()
    parameters = dict(stage.named_parameters())
    for parameter in parameters.values():
        parameter.grad = torch.randn_like(parameter) if case["before"] else None
    inputs = [torch.randn(2, 3, widths[0], dtype=torch.float64) for _ in range(case["micro_batches"])]
    kept, seen = [], {}
    for i in range(len(inputs) + 1):  # forward of one, I of the one before, and W last
        if i < len(inputs):
            made = forward(stage, inputs[i])
            refuse(
                not isinstance(made, tuple | list) or len(made) != 2, "forward does not return two things, (y, kept)"
            )
            seen[f"y of micro-batch {i}"] = _tensor(made[0], "y").detach().clone()
            kept.append(made[1])
        if i:
            gradient = torch.randn(seen[f"y of micro-batch {i - 1}"].shape, dtype=torch.float64)
            with leaves(stage=stage, gradient=gradient):
                found = _counted(partial(input_half, kept[i - 1], gradient), widths, "half I (backward_input)")
            found = _tensor(found, "what backward_input returns")
            seen[f"the gradient of x of micro-batch {i - 1}"] = found.detach().clone()
    for one in kept:
        _counted(partial(weight_half, one), widths, "half W (backward_weight)")
    return seen | {f"the gradient of {name}": parameter.grad for name, parameter in parameters.items()}


def _counted(half: Callable[[], Any], widths: list[int], name: str) -> Any:
    """Call a half and count the work in its matrix products."""
    with FlopCounterMode(display=False) as counter:
        result = half()
    once = sum(2 * 6 * a * b for a, b in itertools.pairwise(widths))
    fault = f"{name} does more than one matrix product for a layer (in units of one for each layer)"
    used = counter.get_total_flops() / once
    refuse(used > 1.001, fault, measured=round(used, 2), expected=1)
    return result


def _tensor(thing: Any, name: str) -> torch.Tensor:
    refuse(not isinstance(thing, torch.Tensor), f"{name} is no tensor", measured=type(thing).__name__)
    return thing
