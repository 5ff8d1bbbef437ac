"""Exercise 4: ``largest_batch(peak, capacity)``: steps on a simulated GPU, none of which may run out of memory.

Two things decide the peak: gradients and the optimizer's temporaries while the batch is small, activations when it is
large. So it is nearly flat at first and then steep: who goes on in the line of two small batches runs out of memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks import plain
from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.contracts.guarding import guarded

PRELOAD = ("torch.distributed.tensor", "checks.contracts.gpus")
MOST_STEPS = 30
REFUSED = tuple(
    f"simgpu.torch_module.{name}"
    for name in ("memory_allocated", "max_memory_allocated", "memory_stats", "mem_get_info")
)


def draw(rng: random.Random) -> list[Case]:
    """Networks that are wide or deep, with so much room that one row needs less than half of it."""
    cases: list[Case] = []
    for width, layers, largest in ((256, 4, 2000), (128, 6, 2999), (640, 1, 5 * 640)):
        cases.append({"ranks": 1, "gpus": 1, "width": width, "layers": layers, "tokens": 1, "facts": [largest]})
    for _ in range(3):
        case: Case = {"ranks": 1, "gpus": 1, "width": 128 * rng.randint(1, 5), "layers": rng.randint(1, 8), "tokens": 1}
        cases.append(case | {"facts": [case["width"] * rng.randint(5, 11) + rng.randint(0, case["width"])]})
    # A network of which the peak gets straight only just before half of the capacity: a row has its price from there.
    cases[3] |= {"layers": 8, "facts": [int(cases[3]["width"] * rng.uniform(2.87, 3.0))]}
    # A network of which few rows fit, as each has many tokens: the first guess must be one that fits for certain.
    cases[-1] |= {"tokens": 8 * cases[-1]["width"], "facts": [rng.randint(10, 20)]}
    for case, more in zip(cases, (0.0, 1.0, rng.random(), 1.0, rng.random(), rng.random()), strict=True):
        case["facts"].append(more)  # how much of the room for one row more is left
    return [case | {"seed": rng.getrandbits(30)} for case in cases]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    largest, more = case["facts"]
    step = _training(case, 2**40)
    fits, too_much = step(largest), step(largest + 1)
    capacity = fits + int(more * (too_much - fits - 1))
    step = _training(case, capacity)
    facts["tried"], facts["capacity"] = [], capacity

    def peak(batch: int) -> int:
        rows = plain.number(batch, whole=True)
        if rows is None or rows < 1:
            raise ValueError(f"a batch has 1, 2, 3, … rows, not {batch!r}")
        facts["tried"].append([rows, False])
        try:
            found = step(rows)
        except torch.OutOfMemoryError:
            facts["tried"][-1][1] = True
            raise
        return found

    answer = watch.call("largest_batch", peak=guarded(peak), capacity=capacity)
    rows = plain.number(answer, whole=True)
    facts["answer"] = f"{answer!r}"[:60] if rows is None else rows


def _training(case: Case, capacity: int) -> Any:
    """``step(rows)``: a training step with so many rows, and the most bytes that it held."""
    import torch
    from torch import nn

    import simgpu

    simgpu.cluster(gpus_per_node=1, numbers=False, memory=capacity)
    width, tokens, device = case["width"], case["tokens"], torch.device("simgpu:0")
    with device:
        layers = [layer for _ in range(case["layers"]) for layer in (nn.Linear(width, width), nn.GELU())]
        model = nn.Sequential(*layers)
        state = [torch.empty_like(one) for one in model.parameters() for _ in range(2)]

    ledger = simgpu.current().gpus[0].memory  # (torch.simgpu's words for it are refused to an answer)

    def step(rows: int) -> int:
        x = loss = None
        ledger.peak = ledger.allocated
        try:
            x = torch.empty(rows, tokens, width, device=device, dtype=torch.float32)  # whatever the answer has set
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for one in model.parameters():
                    one.grad.sqrt()
                held = [torch.empty_like(one) for one in state[::2]]  # temporaries of the optimizer
                del held
            return ledger.peak
        finally:
            del x, loss
            model.zero_grad()

    return step


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts = world[0]
    tried, right = facts["tried"], case["facts"][0]
    if over := [batch for batch, failed in tried if failed]:
        words = f"a step with {over[0]} rows ran out of memory, as number {[f for _, f in tried].index(True) + 1} of "
        words += "the steps: choose each batch so that it fits for certain"
        yield Broken("raised:over", words, f"{over[0]} rows", f"at most {right} rows")
        return
    if "answer" not in facts:
        return
    answer = facts["answer"]
    if not isinstance(answer, int):
        yield Broken("returns:kind", "largest_batch returns a plain int", answer)
    elif answer != right:
        words = f"the largest batch that fits is {'larger' if answer < right else 'smaller'}"
        yield Broken("value:answer", words, f"{answer} rows", f"{right} rows")
    elif len(tried) > MOST_STEPS:
        words = f"finds it, but tries too many steps: {MOST_STEPS} are enough"
        yield Broken("work:steps", words, f"{len(tried)} steps", f"at most {MOST_STEPS}")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, (facts,) = played[0]
    right = case["facts"][0]
    return {
        "networks": len(played),
        "the first": f"{right} rows in {facts['capacity']:,} bytes, found in {len(facts['tried'])} steps",
        "steps that ran out of memory": 0,
    }


CONTRACT = Contract(
    name="memory_and_precision.largest",
    rules={"largest_batch": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("raised:over", "{}"),
        ("returns:*", "{}"),
        ("value:*", "{}"),
        ("work:*", "{}"),
        ("around:*", "{}"),
    ),
    refused=REFUSED,
    figures=figures,
)
