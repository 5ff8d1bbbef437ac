"""Check of ``LossScaler``: steps of a small model, with gradients that are infinite or no numbers in some of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from checks.engine import Reference, exercise, refuse, same
from checks.engine.plain import from_array, kind_of, shorten

DIVIDE, FINITE = "parameter.grad /= self.now", ".isfinite().all()"
GROW, SHRINK, AGAIN = "self.now *= self.growth", "self.now *= self.backoff", "            self.good = 0\n"
ONCE, NEW = "        if not self.unscaled:\n            self.unscale(optimizer)\n", "        self.unscaled = False\n"
STEP, TOLD = "        if self.finite:\n            optimizer.step()\n", "        return self.finite\n"
COUNT, NAMES = "self.good + 1 if self.finite else 0", '("now", "growth", "backoff", "interval", "good")'
OFFICIAL = Reference("memory_and_precision", "LossScaler", {
    "the loss is not scaled at all": {"return loss * self.now": "return loss * 1"},
    "gradients are never divided by the scale": {DIVIDE: "pass"},
    "without a call of unscale, step has to divide the gradients itself, and to look at them": {ONCE: ""},
    "gradients are divided twice, in unscale and again in step": {ONCE: "        self.unscale(optimizer)\n"},
    "only the first step divides the gradients: update has to forget that they were divided": {NEW: ""},
    "a gradient that is NaN is not finite either": {FINITE: ".isinf().logical_not().all()"},
    "an infinite gradient is not finite either": {FINITE: ".isnan().logical_not().all()"},
    "one bad gradient of one parameter is enough to skip, and not only of the last one": {"finite &=": "finite ="},
    "all numbers of a gradient have to be finite, not only one": {FINITE: ".isfinite().any()"},
    "divide the gradients of all the optimizer's groups of parameters": {"param_groups:": "param_groups[:1]:"},
    "the optimizer takes its step though a gradient is not finite": {STEP: "        optimizer.step()\n"},
    "after a skipped step all others are skipped too": {"self.finite = True, True": "self.finite = True, self.finite"},
    "step says True, though the optimizer has skipped its step": {TOLD: "        return True\n"},
    "after a skipped step the scale has to be multiplied by backoff": {SHRINK: "pass"},
    "after a skipped step the scale is divided by 2, and backoff says something else": {SHRINK: "self.now /= 2"},
    "a scale may fall below 1": {SHRINK: "self.now = max(1.0, self.now * self.backoff)"},
    "the scale never grows": {GROW: "pass"},
    "the scale is doubled, and growth says something else": {GROW: "self.now *= 2"},
    "good steps count in a row: a skipped step sets the count to 0": {COUNT: "self.good + self.finite"},
    "the count begins anew after the scale has grown": {AGAIN: ""},
    "the scale grows with each good step after the interval": {"== self.interval": ">= self.interval", AGAIN: ""},
    "the scale grows one step too late": {"self.good == self.interval": "self.good > self.interval"},
    "the scale grows one step too early": {"self.good == self.interval": "self.good >= self.interval - 1"},
    "the scale changes in step already: only update changes it": {TOLD: "        self.update()\n" + TOLD},
    "the state lacks the count of good steps": {NAMES: NAMES.replace(', "good"', "")},
    "the state lacks the scale": {NAMES: NAMES.replace('"now", ', "")},
    "the state lacks the settings: growth, backoff and interval": {NAMES: '("now", "good")'},
})  # fmt: skip
SHAPES = (3, 4), (), (2, 2), (5,), (4,)  # the loss does not use the last one
CASES = [
    {"scale": 1024.0, "growth": 2.0, "backoff": 0.5, "interval": 2, "steps": "ok ok ok ok ok inf ok"},
    {"scale": 4096.0, "growth": 2.0, "backoff": 0.5, "interval": 3,
     "steps": "inf nan ok ok ok ok ok inf ok ok nan ok ok ok ok"},
    {"scale": 512.0, "growth": 4.0, "backoff": 0.25, "interval": 2, "clipped": True,
     "steps": "ok ok ok inf ok inf ok ok nan ok"},
    {"scale": 1.5, "growth": 2.0, "backoff": 0.5, "interval": 4, "saved_after_step": 5,
     "steps": "ok nan nan ok ok ok ok ok ok nan ok"},
    {"scale": 64.0, "growth": 3.0, "backoff": 0.25, "interval": 3, "clipped": True, "saved_after_step": 2,
     "type": "float64", "steps": "ok ok ok ok inf ok ok"},
]  # fmt: skip


class Descent:
    """Gradient descent with two groups of parameters, as far as a scaler needs an optimizer; it counts its steps."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.param_groups, self.steps = [{"params": parameters[:2]}, {"params": parameters[2:]}], 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for one in (one for group in self.param_groups for one in group["params"] if one.grad is not None):
            one.sub_(one.grad, alpha=0.25)


@exercise(OFFICIAL, CASES, title="A loss scaler", difficulty=2, minutes=25)
def scaler(case: dict[str, Any], LossScaler: Callable[..., Any]) -> dict[str, Any]:
    """Judge the class ``LossScaler(scale, growth, backoff, interval)``.

    Some steps. A state is loaded a step after it was saved, and by another scaler.
    """
    torch.manual_seed(1)
    dtype = getattr(torch, case.get("type", "float32"))
    parameters = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in SHAPES]
    optimizer, found, state, kept = Descent(parameters), dict[str, Any](), None, None
    scaler = LossScaler(case["scale"], case["growth"], case["backoff"], case["interval"])
    for step, kind in enumerate(case["steps"].split(), 1):
        factors = [torch.randn(shape, dtype=dtype) for shape in SHAPES[:-1]]
        if kind != "ok":
            factors[step % 4].view(-1)[-1] = torch.finfo(dtype).max / 4 if kind == "inf" else torch.nan
        scaled, loss = _scaled(scaler, sum((a * b).sum() for a, b in zip(parameters, factors, strict=False)))
        found[f"the scale in step {step}"] = float(f"{scaled.item() / loss:.6g}")
        scaled.backward()
        if case.get("clipped"):
            scaler.unscale(optimizer)
            after = [one.grad.clone() for one in parameters[:-1]]
            found[f"the gradients that unscale leaves in step {step}"] = after if kind == "ok" else "any"
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        before, told = optimizer.steps, scaler.step(optimizer)
        refuse(told is None, "step returns nothing: it has to say whether the optimizer took its step")
        found[f"how often the optimizer steps in step {step}"] = optimizer.steps - before
        found[f"what step returns in step {step}"] = from_array(told)
        found[f"the parameters after step {step}"] = [one.detach().clone() for one in parameters]
        scaler.update()
        for one in parameters:
            one.grad = None
        if step == case.get("saved_after_step"):
            state = scaler.state_dict()
            fine = isinstance(state, dict) and not any(isinstance(one, Tensor | list) for one in state.values())
            fault = "state_dict returns a dict of plain numbers, which a file can hold"
            refuse(not fine, fault, measured=shorten(state, 60))
            kept = copy.deepcopy(state)
        elif state is not None and step == case["saved_after_step"] + 1:
            scaler = LossScaler(2.0, 3.0, 0.1, 99)
            scaler.load_state_dict(state)
    fault = "the dict that state_dict has returned, or load_state_dict was given, changes in later steps: make a copy"
    refuse(state != kept, fault)
    return found


def _scaled(scaler: Any, loss: Any) -> tuple[Tensor, float]:
    """The scaled loss, and the loss."""
    before, scaled = loss.item(), scaler.scale(loss)
    fault = "scale returns the loss times the scale, a tensor from which backward can go back"
    fine = isinstance(scaled, Tensor) and scaled.requires_grad
    refuse(not fine, fault, measured="a tensor without a graph" if isinstance(scaled, Tensor) else kind_of(scaled))
    refuse(not same(loss.item(), before), "scale changes the loss itself, which is still needed: return a new tensor")
    return scaled, before
