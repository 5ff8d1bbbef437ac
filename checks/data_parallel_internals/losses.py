"""Exercise 4: ``data_parallel_loss(model, batch, targets, devices)``: the loss of each share, where it is."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, compare
from checks.data_parallel_internals import steps

PRELOAD = (*steps.PRELOAD, "torch._dynamo")  # which shapes without numbers need
MOST_GATHERED = 16  # bytes from each GPU: a sum and a count, or a loss, with room to spare
SPARE = 64  # bytes that each GPU may get and send beside what it needs, such as a weight
MANY_ROWS, MANY_CLASSES = 8192, 50_000
MOST_HELD = 5.5  # times the logits of a share; a fused loss needs 3, one in single steps 5


def draw(rng: random.Random) -> list[Case]:
    cases = [case | {"type": "float32"} for case in steps.draw(rng)]  # (weights that an answer makes are float32)
    cases[1]["one class"] = "next to impossible"  # with a probability that float32 does not know
    cases[2]["rows"] = "41, 1, " + cases[2]["rows"].split(", ")[2]
    return cases


def draw_many(rng: random.Random) -> list[Case]:
    """The step that the lab shows, and a similar one."""
    shares, few = rng.randint(500, 900), rng.choice((3, 5))
    devices = rng.sample(range(few), few)
    return [
        {"ranks": 1, "gpus": 4, "devices": "0, 1, 2, 3", "rows": MANY_ROWS, "classes": MANY_CLASSES},
        {"ranks": 1, "gpus": few, "devices": ", ".join(map(str, devices)), "rows": shares * few, "classes": 30_000},
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    steps.play(case, watch, facts, "data_parallel_loss")


def scene_many(case: Case, watch: Any, facts: Facts) -> None:
    """A step with many classes, shapes only: what every GPU holds."""
    import torch
    from torch import nn

    import simgpu
    from checks.core import gpus

    simgpu.cluster(gpus_per_node=case["gpus"], numbers=False)
    devices = [simgpu.device(int(number)) for number in case["devices"].split(", ")]
    with devices[0]:
        model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, case["classes"]))
        batch, targets = torch.empty(case["rows"], 256), torch.zeros(case["rows"], dtype=torch.int64)
    before = gpus.held()
    with gpus.seen() as facts["seen"]:
        loss = watch.call("data_parallel_loss", model=model, batch=batch, targets=targets, devices=devices)
        with watch.step(steps.BACKWARD, model=model, batch=batch):
            loss.backward()
    facts["seen"]["peak"] = [peak + was for peak, was in zip(facts["seen"]["peak"], before, strict=True)]
    facts["parameters"] = sum(parameter.nbytes for parameter in model.parameters())


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, step in enumerate(world[0]["steps"]):
        broken = list(_judge_loss(step))
        if not broken:
            broken = [
                *steps.judge_gradients(step),
                *steps.judge_work(step),
                *_judge_gathered(step),
                *steps.judge_bytes(step, 0, 8, SPARE, _guess(step)),
                *steps.judge_left(step),
            ]
        for one in broken:
            yield one.at(call=2 * number)


def _judge_loss(step: Facts) -> Iterator[Broken]:
    got, right, home = step["got"], step["right"], f"GPU {step['numbers'][0]}"
    if got["kind"] != "tensor":
        words = f"data_parallel_loss returns a {got['kind']}: a number without a graph, so no gradient can go back"
        yield Broken("returns:kind", f"{words}. Keep tensors")
    elif got["value"].dim():
        words = "return one number, not one for each GPU or row"
        yield Broken("value:0 shape", words, list(got["value"].shape), [])
    elif got["place"] != home:
        yield Broken("value:1 place", "the loss is in the wrong place", got["place"], home)
    else:
        exact = {"steps": step["rounding"]["steps"], "coarsest": step["rounding"]["coarsest"]}
        what = "the loss, which has to be the mean over all rows, each with its own target,"
        yield from compare("value:2 loss", what, got["value"], [right], guesses=_mistakes(step), **exact)
        if not got["gradient"]:
            words = "the loss knows nothing of the replicas, so no gradient can go back: no detach, no item"
            yield Broken("value:3 cut", words)


def _mistakes(step: Facts) -> dict[str, Any]:
    """What a loss is that is put together in another way."""
    alone, rows, gpus = step["rows alone"].double(), step["rows"], len(step["numbers"])
    most, _ = steps.shares(rows, gpus)
    found: dict[str, Any] = {"is that of the parameters before the last step: replicate in every step": step["stale"]}
    for parts in (alone.split(most), alone.tensor_split(min(gpus, rows))):
        means = [part.mean() for part in parts]
        if len(means) > 1:
            uneven = (
                "counts every GPU the same, so a row on a GPU with fewer rows counts more: weight each loss with its "
            )
            found |= {
                f"{uneven}number of rows": sum(means) / len(means),
                "is the sum of the GPUs' means: divide": sum(means),
                "is the sum over all rows: divide by their number": sum(alone),
                "is the loss of the first GPU's rows alone": means[0],
                "is divided by the number of GPUs once more": sum(alone) / rows / len(means),
            }
    return found


def _judge_gathered(step: Facts) -> Iterator[Broken]:
    """What one GPU sends to the first one in forward."""
    numbers, copies = step["numbers"], step["ahead"]["copies"]
    sent = max((copies.get(f"GPU {number} → GPU {numbers[0]}", 0) for number in numbers[1:]), default=0)
    if sent > MOST_GATHERED:
        most, _ = steps.shares(step["rows"], len(numbers))
        each = step["right"].nbytes
        figures = {"measured": f"{sent} bytes from a GPU", "expected": f"{each} bytes, one loss"}
        if sent > most * each:
            words = "a number for each row and class goes to the first GPU: compute the loss where the logits are"
        else:
            words = "a number for each row goes to the first GPU: one for each GPU is enough"
        yield Broken("copies:0 gathered", words, **figures)


def _guess(step: Facts) -> Any:
    state, row, rows = step["sizes"]["state"], step["sizes"]["input"], step["rows"]

    def guess(gpus: int, away: int) -> dict[int, str]:
        words = "go to every GPU: scatter them"
        found = {gpus * state + away * row + gpus * rows * 8: f"all targets {words}"}
        found[gpus * state + gpus * rows * (row + 8)] = f"batch and targets {words}"
        losses = range((MOST_GATHERED + 1) * gpus)
        return {nbytes + one: words for nbytes, words in found.items() for one in losses}

    return guess


def judge_many(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    seen, share = world[0]["seen"], -(-case["rows"] // len(case["devices"].split(", ")))
    most = limit(world[0]["parameters"], share, case["classes"])
    for gpu, peak in enumerate(seen["peak"]):
        if peak > most:
            words = f"GPU {gpu} holds too much at its peak: with {case['classes']:,} classes, anything that has a "
            words += "number for each row and class must stay split over the GPUs"
            yield Broken("memory:peak", words, f"{peak / 1e9:.2f} GB", f"below {most / 1e9:.2f} GB")


def limit(parameters: int, share: int, classes: int) -> float:
    """Bytes that a GPU may hold: parameters, gradients and their sum, and what comes of a share of the rows."""
    return 3 * parameters + MOST_HELD * share * classes * 4


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    done = [step for _, world in played for step in world[0]["steps"]]
    gathered = [
        nbytes
        for step in done
        for link, nbytes in step["ahead"]["copies"].items()
        if link.startswith("GPU") and link.endswith(f"→ GPU {step['numbers'][0]}")
    ]
    return {"steps": len(done), "gathered from each GPU": f"at most {max(gathered)} bytes"}


def figures_many(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {"peak of each GPU": f"at most {max(played[0][1][0]['seen']['peak']) / 1e9:.2f} GB"}


CONTRACT = Contract(
    name="data_parallel_internals.loss",
    rules={"data_parallel_loss": Rules(), steps.BACKWARD: steps.AFTERWARDS},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=steps.MISTAKES,
    refused=steps.REFUSED,
    figures=figures,
)
MEMORY = dataclasses.replace(
    CONTRACT,
    name="data_parallel_internals.loss, memory",
    draw=draw_many,
    scene=scene_many,
    judge=judge_many,
    figures=figures_many,
)
