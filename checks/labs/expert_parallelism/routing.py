"""Check of ``route`` and ``update``: who is chosen, with which weight, and whether the load comes into balance."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse

OFFICIAL = Reference("expert_parallelism", "route update", {
    "the weights contain the bias: it decides who is chosen, and nothing else":
        {"weights = scores.gather": "weights = (scores + bias).gather"},
    "the bias has no part in the choice": {"biased = (scores + bias)": "biased = scores"},
    "the weights of a token's experts do not add up to 1": {" / weights.sum(-1, keepdim=True)": ""},
    "the weights are divided by the sum of all scores, not of the chosen ones":
        {"weights.sum(-1, keepdim=True)": "scores.sum(-1, keepdim=True)"},
    "the scores are a softmax, where the sigmoid of each logit is asked for":
        {"logits.sigmoid()": "logits.softmax(-1)"},
    "the weights are a softmax over the chosen logits: divide the chosen scores by their sum": {
        "weights = scores.gather(1, chosen)\n    return chosen, weights / weights.sum(-1, keepdim=True)":
            "return chosen, logits.gather(1, chosen).softmax(-1)"},
    "a node's score is that of its best expert, not the sum of its two best": {"topk(2)": "topk(1)"},
    "a node's score is the sum of all its experts": {".topk(2).values.sum(-1)": ".sum(-1)"},
    "nodes are chosen by scores without the bias": {"best = biased.view": "best = scores.view"},
    "tokens go to more nodes than `limit`": {"biased.masked_fill(~allowed, -torch.inf)": "biased"},
    "experts of nodes that were left out are chosen: 0 is more than a negative score with bias":
        {"-torch.inf": "0.0"},
    "the bias goes the wrong way: up for experts that have too much": {"load.mean() - load": "load - load.mean()"},
    "the load is compared with that of one choice for each token, and each token makes k":
        {"load.mean()": "load.mean() / chosen.shape[1]"},
})  # fmt: skip
STEPS, LAST, SPEED, BOUND = 60, 15, 0.03, 1.4


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """Plenty of nodes first; then biases of any size, also far below 0."""
    case = {"nodes": 4, "experts": 16, "limit": 2, "k": 4, "steps": STEPS, "tokens": 64, "lowest_bias": -0.3}
    if number > 0:
        nodes = rng.choice((2, 3, 4, 6))
        limit = rng.randint(1, nodes - 1)
        case |= {"nodes": nodes, "experts": nodes * rng.randint(3, 5), "limit": limit, "k": rng.randint(2, 2 * limit)}
    if number > 1:
        case |= {"steps": 0, "tokens": rng.randint(1, 64), "lowest_bias": -2.0}
    return case | {"seed": rng.randrange(2**31)}


@exercise(OFFICIAL, draw, title="A router in balance", difficulty=2, minutes=20)
def router(case: dict[str, Any], route: Callable[..., Any], update: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``route(logits, bias, k, nodes, limit)`` and ``update(bias, chosen, speed)``."""
    generator = torch.Generator().manual_seed(case["seed"])
    experts, k, nodes, limit = case["experts"], case["k"], case["nodes"], case["limit"]
    favour = 1.5 * torch.randn(experts, generator=generator, dtype=torch.float64).sort(descending=True).values

    def new(tokens: int) -> torch.Tensor:
        return favour + torch.randn(tokens, experts, generator=generator, dtype=torch.float64)

    logits = new(case["tokens"]).requires_grad_()
    bias = 0.3 + (case["lowest_bias"] - 0.3) * torch.rand(experts, generator=generator, dtype=torch.float64)
    with leaves(logits=logits, bias=bias):
        chosen, weights = _two(route(logits, bias, k, nodes, limit), (case["tokens"], k))
    refuse(not weights.requires_grad, "the weights have no gradient: the router learns nothing")
    chosen, order = chosen.sort(-1)
    refuse(bool((chosen.diff() == 0).any()), "a token has the same expert twice")
    weights = weights.gather(1, order)
    seen = {"chosen experts (each token's in their order)": chosen, "their weights": weights.detach()}
    shares = torch.randn(case["tokens"], experts, generator=generator, dtype=torch.float64)
    (weights * shares.gather(1, chosen)).sum().backward()
    seen["the gradient of the logits"] = logits.grad

    bias, total = torch.zeros(experts, dtype=torch.float64), torch.zeros(experts)
    for step in range(case["steps"]):
        chosen = _two(route(new(256), bias.clone(), k, nodes, limit), (256, k))[0].detach()
        before = bias.clone()
        after = update(bias, chosen, SPEED)
        bias = bias if after is None else after
        refuse(not isinstance(bias, torch.Tensor) or bias.shape != before.shape, "update does not return the new bias")
        bias = bias.detach().double()
        moved = float((bias - before).abs().max())
        refuse(moved > SPEED * 1.0001, "a bias moves by more than `speed` in a step", measured=moved, expected=SPEED)
        if step >= STEPS - LAST:
            total += torch.bincount(chosen.flatten(), minlength=experts)
    busiest = float(total.max() / total.mean()) if case["steps"] else 0
    name = f"load of the busiest expert after {STEPS - LAST} steps, in units of the mean"
    return seen | {name: busiest if busiest > BOUND else f"at most {BOUND}"}


def _two(made: Any, shape: tuple[int, ...]) -> Any:
    refuse(not isinstance(made, tuple | list) or len(made) != 2, "route does not return two things, (chosen, weights)")
    for name, one in zip(("chosen", "weights"), made, strict=True):
        refuse(not isinstance(one, torch.Tensor), f"{name} is no tensor", measured=type(one).__name__)
        refuse(one.shape != shape, f"{name} is not [tokens, k]", measured=list(one.shape), expected=list(shape))
    refuse(made[0].is_floating_point(), "the numbers of the chosen experts are no whole numbers")
    return made[0].long(), made[1]
