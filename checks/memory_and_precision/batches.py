"""Check of ``largest_batch``: training steps on a simulated GPU, none of which may run out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor  # a simulated GPU asks for it in its first step: half a second, so before the fork
from torch import nn

import simgpu
from checks.core import Reference, refuse
from checks.plain import number, shorten

ROW, RETURN = "row = held - peak(batch - 1)", "return batch + (capacity - held) // row"
OFFICIAL = Reference("memory_and_precision", "largest_batch", {
    "that batch fits for certain, and some rows more fit: ask what one more row costs": {RETURN: "return batch"},
    "the capacity is all yours: no part of it is kept free":
        {"batch, held = 1, peak(1)": "capacity = capacity * 9 // 10\n    batch, held = 1, peak(1)"},
    "the result does not fit, it is a row too large: round down": {RETURN: RETURN + " + 1"},
    "between a small batch and a large one the peak is no straight line: what a row costs, two neighbours say":
        {ROW: "row = max(1, (held - peak(max(1, batch // 10))) // max(1, batch - batch // 10))"},
    "one row's bytes do not come again with each row: what every batch needs is there once":
        {RETURN: "return capacity // peak(1)"},
    "a batch may have any number of rows, not only powers of two": {RETURN: "return 2 ** (batch.bit_length() - 1)"},
})  # fmt: skip
MOST_STEPS = 30
CASES = [  # room left: how much of what one row more would take, with the largest batch
    {"width": 256, "layers": 4, "rows_that_fit": 2000, "room_left": 0.0},
    {"width": 128, "layers": 6, "rows_that_fit": 2999, "room_left": 1.0},
    # Here the peak gets straight only just before half of the capacity: a row has its price from there.
    {"width": 384, "layers": 4, "rows_that_fit": 920, "room_left": 1.0},
    # Here few rows fit, as each has many tokens: the first guess must be one that fits for certain.
    {"width": 128, "layers": 3, "rows_that_fit": 13, "room_left": 0.7, "tokens": 1024},
]


def play(case: dict[str, Any], largest_batch: Callable[..., Any]) -> dict[str, Any]:
    fits = case["rows_that_fit"]
    step = _training(case, 2**40)
    least, too_much = step(fits), step(fits + 1)
    capacity = least + int(case["room_left"] * (too_much - least - 1))
    step, tried, failed = _training(case, capacity), [], []

    def peak(rows: int) -> int:
        if number(rows, whole=True) is None or rows < 1:
            raise ValueError(f"a batch has 1, 2, 3, … rows, not {rows!r}")
        tried.append(int(rows))
        try:
            return step(int(rows))
        except torch.OutOfMemoryError:
            failed.append(int(rows))
            raise

    try:
        found = largest_batch(peak, capacity)
    finally:
        words, most = "a step ran out of memory: choose each batch so that it fits for certain", max(failed, default=0)
        refuse(failed, words, measured=f"{most} rows", expected=f"at most {fits} rows")
    rows = number(found, whole=True)
    refuse(rows is None, "largest_batch returns a whole number of rows", measured=shorten(found))
    words = f"the largest batch is found with at most {MOST_STEPS} steps"
    refuse(rows == fits and len(tried) > MOST_STEPS, words, measured=len(tried))
    return {"the largest batch": rows}


def _training(case: dict[str, Any], capacity: int) -> Callable[[int], int]:
    """``step(rows)``: a training step with so many rows, and the most bytes that it held."""
    simgpu.cluster(gpus_per_node=1, numbers=False, memory=capacity)
    width, device = case["width"], torch.device("simgpu:0")
    with device:
        model = nn.Sequential(*(layer for _ in range(case["layers"]) for layer in (nn.Linear(width, width), nn.GELU())))
        state = [torch.empty_like(one) for one in model.parameters() for _ in range(2)]
    ledger = simgpu.current().gpus[0].memory

    def step(rows: int) -> int:
        x = loss = None
        ledger.peak = ledger.allocated
        try:
            x = torch.empty(rows, case.get("tokens", 1), width, device=device)
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
