"""Exercise 3: ``data_parallel_forward(model, batch, devices)``: scatter, replicate, apply, gather."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, compare
from checks.data_parallel_internals import steps

if TYPE_CHECKING:
    from torch import Tensor

PRELOAD = steps.PRELOAD
LAUNCH_S = 1e-7  # where it is asked which GPUs work at the same time, launching must not decide it
STATISTICS = ("model.norm.running_mean", "model.norm.running_var", "model.norm.num_batches_tracked")


def draw(rng: random.Random) -> list[Case]:
    cases = steps.draw(rng)
    others = ("statistics", rng.randint(2, 4)), ("statistics", rng.randint(2, 4)), ("slow GPUs", 4), ("no gradients", 4)
    for kind, few in others:
        devices = ", ".join(map(str, rng.sample(range(few + 1), few)))
        case = {"ranks": 1, "gpus": few + 1, "devices": devices, "play": kind, "seed": rng.getrandbits(30)}
        if kind == "statistics":
            rows = rng.randint(2 * few, 4 * few)
            case["rows"] = rows + (rows % steps.shares(rows, few)[0] == 1)  # (batch normalisation refuses a single row)
        cases.append(case)
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    if case["play"] == "steps":
        steps.play(case, watch, facts, "data_parallel_forward")
    elif case["play"] == "statistics":
        _statistics(case, watch, facts)
    else:
        _slow_gpus(case, watch, facts)


def _statistics(case: Case, watch: Any, facts: Facts) -> None:
    """A step of a model with batch normalisation: whose rows do its statistics see? (Backward runs none again.)"""
    import torch

    import simgpu
    from checks.contracts import snapshot
    from checks.data_parallel_internals import nets

    simgpu.cluster(gpus_per_node=case["gpus"])
    numbers = [int(one) for one in case["devices"].split(", ")]
    model, twin = nets.pair(case["seed"], simgpu.device(numbers[0]), "float64", statistics=True)
    batch = nets.rows(case["rows"], model, case["seed"])
    most, facts["right"] = steps.shares(case["rows"], len(numbers))[0], []
    for count in range(1, most + 1):
        nets.copy_state(model, twin)
        if count > 1 or not twin.norm.training:  # (one row has no variance)
            twin(batch[:count])
        facts["right"].append([one.clone() for one in twin.norm.buffers()])
    facts["counted"] = int(model.norm.training)
    before = int(snapshot.raw(model.norm.num_batches_tracked))
    devices = [simgpu.device(number) for number in numbers]
    output = watch.call("data_parallel_forward", model=model, batch=batch.to(devices[0]), devices=devices)
    if isinstance(output, torch.Tensor) and output.requires_grad:
        with watch.step(steps.BACKWARD, model=model):
            output.sum().backward()
    facts["got"] = [snapshot.raw(one).clone() for one in model.norm.buffers()]
    facts["batches"] = int(facts["got"][2]) - before


def _slow_gpus(case: Case, watch: Any, facts: Facts) -> None:
    """GPUs that compute for long: do they do it at the same time?"""
    import torch
    from torch import nn

    import simgpu
    from checks.contracts import gpus

    fast = simgpu.gpu("H100")
    slow = dataclasses.replace(fast, name="slow", flops={kind: rate / 1e5 for kind, rate in fast.flops.items()})
    simgpu.cluster(gpus_per_node=case["gpus"], gpu=slow, launch_s=LAUNCH_S)
    devices = [simgpu.device(int(number)) for number in case["devices"].split(", ")]
    with devices[0]:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        batch = torch.empty(len(devices) * 64, 64).fill_(1.0)
    with gpus.seen() as seen, torch.set_grad_enabled(case["play"] == "slow GPUs"):
        watch.call("data_parallel_forward", model=model, batch=batch, devices=devices)
    facts["spans"] = seen["spans"]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts = world[0]
    if case["play"] == "statistics":
        yield from _judge_statistics(facts)
    elif "spans" in facts:
        yield from _judge_together(facts["spans"])
    for number, step in enumerate(facts.get("steps", ())):
        broken = list(_judge_output(step))
        if not broken:
            broken = [
                *steps.judge_gradients(step),
                *steps.judge_work(step),
                *_judge_bytes(step),
                *steps.judge_left(step),
            ]
        for one in broken:
            yield one.at(call=2 * number)


def _judge_output(step: Facts) -> Iterator[Broken]:
    got, right, home = step["got"], step["right"], f"GPU {step['numbers'][0]}"
    if got["kind"] != "tensor":
        yield Broken("returns:kind", f"data_parallel_forward returns one tensor with all rows, not a {got['kind']}")
        return
    output = got["value"]
    if got["place"] != home:
        yield Broken("value:0 place", "the outputs are gathered in the wrong place", got["place"], home)
    elif output.dim() == right.dim() and output.shape[1:] == right.shape[1:] and len(output) < len(right):
        yield Broken("value:1 lost", "rows are lost, where they do not divide evenly", len(output), len(right))
    elif _is_shuffled(output, right):
        yield Broken("value:2 order", "the rows of the output are not in the order of the batch")
    else:
        words, old = "comes from the parameters before the last step: replicate in every step", step["stale"]
        if output.shape == right.shape:  # (some rows may)
            old = right.where((output - right).abs() <= (output - old).abs(), old)
        yield from compare("value:3 output", "the output", output, [right], guesses={words: old}, **step["rounding"])
        if not got["gradient"]:
            words = "the output knows nothing of the replicas, so no gradient can go back: gather with autograd"
            yield Broken("value:4 cut", words)


def _is_shuffled(output: Tensor, right: Tensor) -> bool:
    import torch

    if output.shape != right.shape or output.dtype != right.dtype or torch.allclose(output, right, rtol=1e-3):
        return False
    places = (output[:, None] - right[None]).flatten(2).norm(dim=2).argmin(0)
    return len(set(places.tolist())) == len(right) and torch.allclose(output[places], right, rtol=1e-3)


def _judge_bytes(step: Facts) -> Iterator[Broken]:
    sizes, rows = step["sizes"], step["rows"]
    state, inputs, outputs = sizes["state"], sizes["input"], step["right"].nbytes // rows

    def guess(gpus: int, away: int) -> dict[int, str]:
        both = away * (inputs + outputs)
        return {
            gpus * state + gpus * rows * inputs + away * outputs: "the whole batch goes to every GPU: scatter it",
            gpus * (gpus + 1) * state + both: "the model is replicated once for each GPU: replicate once a step",
            gpus * state
            + away * inputs
            + gpus * rows * outputs: "every GPU gets the outputs: gather on devices[0] only",
        }

    yield from steps.judge_bytes(step, outputs, 0, 0, guess)


def _judge_statistics(facts: Facts) -> Iterator[Broken]:
    if facts["batches"] != facts["counted"]:
        words = (
            "the model's statistics have to see one batch in a step in training mode, that of the first GPU, and none "
        )
        words += "in eval mode: give the first replica the model's own buffers, and the others copies"
        yield Broken("value:5 statistics", words, f"{facts['batches']} batches", facts["counted"])
        return
    broken: list[Broken] = []
    for right in facts["right"]:
        broken = [
            one
            for name, got, wanted in zip(STATISTICS[:2], facts["got"], right, strict=False)
            for one in compare("value:5 statistics", f"{name} after a step", got, [wanted], steps=steps.ROUNDINGS)
        ]
        if not broken:
            return
    words = "the model's statistics are not those of the first GPU's rows"
    yield Broken("value:5 statistics", words, broken[0].measured, broken[0].expected)


def _judge_together(spans: dict[int, tuple[float, float]]) -> Iterator[Broken]:
    if len(spans) < 2:
        yield Broken("work:gpus", "not every GPU works", f"GPU {', '.join(map(str, spans))}")
        return
    last_begins, first_ends = max(first for first, _ in spans.values()), min(last for _, last in spans.values())
    if last_begins >= first_ends:
        done, late = min(spans, key=lambda gpu: spans[gpu][1]), max(spans, key=lambda gpu: spans[gpu][0])
        words = f"the GPUs do not work at the same time: GPU {late} begins when GPU {done} has ended. A copy waits for "
        words += (
            "what its GPU was given before, and the host must not wait for a result: copy everything first, then run"
        )
        measured = f"GPU {late} begins after {last_begins * 1e3:.1f} ms"
        yield Broken("work:together", words, measured, f"before GPU {done} ends, after {first_ends * 1e3:.1f} ms")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    done = [step for _, world in played for step in world[0].get("steps", ())]
    first = done[0]
    moved = sum(sum(first[phase]["copies"].values()) for phase in ("ahead", "back"))
    return {
        "steps": len(done),
        f"bytes moved in a step with {first['rows']} rows on {len(first['numbers'])} GPUs": moved,
        "GPUs at work together": 4,
    }


CONTRACT = Contract(
    name="data_parallel_internals.forward",
    rules={
        "data_parallel_forward": Rules(changes=tuple(f"{name}.value" for name in STATISTICS)),
        steps.BACKWARD: steps.AFTERWARDS,
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=steps.MISTAKES,
    refused=steps.REFUSED,
    figures=figures,
)
