"""Checks of ``gpipe_step`` and ``one_f_one_b_step``, on simulated GPUs, beside one device that gets the whole batch.

Only matrix products take time on these GPUs. So what is idle is idle because of the order of the work, and the formula
for the bubble is exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import simgpu
from checks.engine import Reference, exercise, gpus, leaves, refuse, same
from checks.engine.plain import kind_of
from checks.labs.model_parallelism import order
from simgpu.hardware import TOY
from simgpu.time.work import Port
from utils.hardware.links import Link

BACK, EACH = "    for loss in losses:\n        loss.backward()\n", ".tensor_split(micro_batches)"
KEEP = "        losses.append(loss_fn(x, y) * len(y) / len(targets))\n"
GPIPE = Reference("model_parallelism", "gpipe_step", {
    **order.shares(" * len(y) / len(targets)", " / micro_batches"),
    "the samples at the end of the batch are left out: m need not divide their number":
        {f"batch{EACH}": "batch.split(len(batch) // micro_batches)[:micro_batches]",
         f"targets{EACH}": "targets.split(len(targets) // micro_batches)[:micro_batches]"},
    "the gradients that were there before the step are lost: add to them, as backward does":
        {"    losses = []\n": "    losses = []\n    [stage.zero_grad() for stage in stages]\n"},
    "the loss that comes back is that of the last micro-batch":
        {"sum(loss.detach() for loss in losses)": "loss.detach()"},
    "there are fewer micro-batches than m: chunk may give fewer parts than asked for, tensor_split does not":
        {"tensor_split": "chunk"},
    "each backward follows its forward: GPipe runs the forwards of all micro-batches first":
        {KEEP: f"{KEEP}        losses[-1].backward()\n", BACK: ""},
})  # fmt: skip
ONE_F_ONE_B = Reference("model_parallelism", "one_f_one_b_step", {
    **order.shares(" * len(ys[k]) / len(targets)", " / m"),
    "the gradients that were there before the step are lost: add to them, as backward does":
        {"    inbox, kept, losses": "    [stage.zero_grad() for stage in stages]\n    inbox, kept, losses"},
    "the loss that comes back is that of the last micro-batch": {"sum(losses)": "losses[-1]"},
    "all forwards come first: that is GPipe": {"min(p - 1 - stage, m)": "m"},
})  # fmt: skip
WIDTH, NO_TIME_S = 32, 1e-12
CASES = [
    {"stages": 2, "micro_batches": 3, "samples": 6},
    {"stages": 2, "micro_batches": 3, "samples": 7, "gradients_before": True},
    {"stages": 1, "micro_batches": 4, "samples": 6},
    {"stages": 3, "micro_batches": 4, "samples": 8},
    {"stages": 3, "micro_batches": 2, "samples": 4},
    {"stages": 2, "micro_batches": 4, "samples": 192, "layers": 4},  # so large that activations can be told apart
]


class Layer(nn.Module):
    """Its backward takes twice as long as its forward, also on the first GPU: ``shift`` needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.linear = nn.Parameter(torch.randn(WIDTH) / 8), nn.Linear(WIDTH, WIDTH)
        self.linear.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x + self.shift))


class Stage(nn.Sequential):
    """It notes its passes: "F" when a forward is over, "B" when the gradient of what came out is there."""

    passes = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.passes += "F"
        if y.requires_grad:
            y.register_hook(self._back)
        return y

    def _back(self, _: torch.Tensor) -> None:
        self.passes += "B"


@exercise(GPIPE, CASES, title="A GPipe step", difficulty=2, minutes=20)
def gpipe(case: dict[str, Any], gpipe_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``gpipe_step(stages, batch, targets, loss_fn, micro_batches)``."""
    words = "a copy begins when all is done that was launched before on the GPU that it leaves and on the one that it "
    words += "goes to, so launch it before their other work"
    return _play(case, gpipe_step, lambda stage, p, m: "F" * m + "B" * m, words, most=math.inf)


@exercise(ONE_F_ONE_B, CASES, title="A 1F1B step", difficulty=3, minutes=25)
def one_f_one_b(case: dict[str, Any], one_f_one_b_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches)``."""
    (schedule,) = order.OFFICIAL.functions()
    words = "a plain .to() keeps both GPUs waiting for each other, and work that is launched late begins late: send on "
    words += "streams of their own, as soon as there is something to send"
    most = min(case["stages"], case["micro_batches"]) + 0.9
    return _play(case, one_f_one_b_step, lambda *sizes: "".join(item[0] for item in schedule(*sizes)), words, most)


def _play(case: dict[str, Any], step: Callable[..., Any], passes: Callable[..., str], waits: str, most: float) -> Any:
    """One step. ``passes`` gives the passes of a stage ("FFBB"), ``waits`` why a bubble may be too large, and ``most``
    of how many micro-batches GPU 0 may hold the activations."""
    gpus.begin()
    p, m, there = case["stages"], case["micro_batches"], case.get("gradients_before", False)
    _ideal_cluster(p)
    torch.manual_seed(case["samples"])
    stages = [Stage(*(Layer() for _ in range(case.get("layers", 1)))) for _ in range(p)]
    batch, targets = torch.randn(2, case["samples"], WIDTH)
    loss = nn.functional.mse_loss(nn.Sequential(*stages)(batch), targets)
    loss.backward()
    right = {"the loss": loss.detach()} | {name: one.grad + there for name, one in _trained(stages).items()}
    right |= {f"the passes of GPU {i}, in order": passes(i, p, m) for i in range(p)}
    for i, stage in enumerate(stages):
        gpus.put(stage, torch.device("simgpu", i))
        stage.passes = ""
    batch, targets, before = batch.to("simgpu:0"), targets.to(f"simgpu:{p - 1}"), gpus.held()
    for one in _trained(stages).values():
        one.grad = torch.ones_like(one) if there else None
    with leaves(batch=batch, targets=targets), simgpu.races() as found, gpus.seen() as seen:
        loss = step(list(stages), batch, targets, nn.functional.mse_loss, m)
        gpus.go_on([loss, *(one.grad for one in _trained(stages).values())])
    where = gpus.place(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else kind_of(loss)
    fault = "what comes back is not a tensor with one number on the last GPU"
    refuse(where != f"GPU {p - 1}", fault, measured=where, expected=f"GPU {p - 1}")
    for i, stage in enumerate(stages):
        fault = "gets no gradients: backward does not come there (was a tensor detached, and its gradient not sent "
        fault += "back?), or runs on a copy of the stage"
        refuse(all(one.grad is None for one in stage.parameters()), f"stage {i} {fault}")
    gradients = {name: None if one.grad is None else one.grad.cpu() for name, one in _trained(stages).items()}
    result = {"the loss": loss.detach().cpu().reshape(())} | gradients
    result |= {f"the passes of GPU {i}, in order": stage.passes for i, stage in enumerate(stages)}
    if same(result, right):  # (else it is told what is wrong with them)
        _on_time(case, seen, gpus.unordered(found), waits)
        kept = seen["peak"][0] - (not there) * sum(one.nbytes for one in _trained(stages[:1]).values())
        held = kept / (2 * case.get("layers", 1) * batch.nbytes / m)  # (a layer keeps two tensors for its backward)
        fault = "GPU 0 holds the activations of too many micro-batches: after its backward nothing may hold on to a "
        fault += "micro-batch's input, output or loss"
        refuse("layers" in case and held > most, fault, measured=f"those of {held:.1f}", expected=f"at most {most}")
    copies = Counter(tuple(event[1]) for event in seen["events"] if len(event[1]) == 2)
    result["transfers from GPU to GPU"] = {f"{a} to {b}": copies[a, b] for a, b in sorted(copies)}
    for one in _trained(stages).values():
        one.grad = None
    left = [now - then for now, then in zip(gpus.held(), before, strict=True)]
    left[-1] -= gpus.rounded(loss.nbytes)
    fault = "after the step something stays on a GPU beside gradients and the loss: who keeps activations or losses?"
    refuse(any(left), fault, measured=f"{left} bytes", expected=[0] * p)
    return result


def _trained(stages: list[Stage]) -> dict[str, nn.Parameter]:
    named = ((i, *one) for i, stage in enumerate(stages) for one in stage.named_parameters())
    return {f"the gradient of stages[{i}].{name}": one for i, name, one in named if one.requires_grad}


def _on_time(case: dict[str, Any], seen: dict[str, Any], found: list[str], waits: str) -> None:
    """Refuse numbers that go to the host, waits that are too many or missing, and a bubble that is too large."""
    p, m = case["stages"], case["micro_batches"]
    host = sum("host" in event[2] for event in seen["events"])
    fault = "a number goes to the host inside the step, or comes from there (.item(), float(…), .cpu()), and the host "
    refuse(host, f"{fault}launches nothing until it is there", measured=f"{host} copies")
    pauses = seen["waits"] + seen["pauses"]
    fault = "the host waits until a GPU, a stream or an event is done (synchronize), and launches nothing meanwhile"
    refuse(pauses, f"{fault}: let a stream wait, with wait_stream or wait_event", measured=f"{pauses} times")
    fault = "nothing says which of two streams comes first, and a wait is missing between them"
    refuse(found, f"{fault}: {found and found[0][:300]}")
    work = [event for event in seen["events"] if event[5]]
    span = max(event[4] for event in work) - min(event[3] for event in work)
    idle, formula = 1 - sum(event[4] - event[3] for event in work) / (p * span), (p - 1) / (m + p - 1)
    large, fault = case["samples"] % m == 0 and idle > 1.05 * formula + 1e-6, f"the bubble is too large: {waits}"
    refuse(large, fault, measured=f"{idle:.3f}", expected=f"(p − 1) / (m + p − 1) = {formula:.3f}")


def _ideal_cluster(p: int) -> None:
    """Simulated GPUs on which only matrix products take time, and copies never wait for a link."""
    link = Link("ideal link", NO_TIME_S, 1e18, 2026, "invented: it takes next to no time", "invented")
    rates = dict.fromkeys(TOY.flops, 10e9)
    gpu = dataclasses.replace(TOY, name="ideal", flops=rates, memory_bytes_per_s=1e18, nvlink=link, host=link)
    cluster = simgpu.cluster(gpus_per_node=p, gpu=gpu, launch_s=NO_TIME_S)
    cluster.path = lambda *_: (link, (Port("a link of its own"),))  # type: ignore[method-assign]
