"""Check of ``train_resumed``: orders as if never stopped, and workers that are up while somebody evaluates."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, refuse
from checks.labs.feeding_the_ranks import epochs
from checks.labs.feeding_the_ranks.every_epochs import ALIKE

FIRST, NEXT = "    sampler.set_epoch(first)\n", "        sampler.set_epoch(epoch + 1)\n"
LOOP = "    for epoch in range(first, epochs):\n"
TELL = "        sampler.set_epoch(epoch)\n"
OFFICIAL = Reference("feeding_the_ranks", "train_resumed", {
    ALIKE: {FIRST: "", NEXT: ""},
    "the orders are one epoch late: an iterator's order is drawn when it is made, and set_epoch comes too late for it, "
    "or with the epoch that is over":
        {NEXT: TELL},
    "the orders are one epoch late: iter(loader) draws the order, and set_epoch comes too late for it, also for the "
    "first one, which has that of epoch 0 even after resuming":
        {FIRST: "", NEXT: "", LOOP: LOOP + TELL},
    "the first iterator after resuming has the order of epoch 0: set_epoch comes before it, too": {FIRST: ""},
    "after resuming, the epochs are counted from 0 again: count from the very first one":
        {FIRST: "    sampler.set_epoch(0)\n", NEXT: NEXT.replace("epoch + 1", "epoch - first + 1")},
})  # fmt: skip
CASES = [{"samples": 23, "first": 2, "epochs": 4}, {"samples": 26, "first": 2, "epochs": 3}]
PATIENCE = 5.0  # seconds for workers to read their first sample, however busy the machine is


def play(case: dict[str, Any], train_resumed: Callable[..., Any]) -> dict[str, Any]:
    whole, late = (_run(case, train_resumed, first) for first in (0, case["first"]))
    return epochs.seen(whole) | epochs.named(late, whole, f", resumed with epoch {case['first']},")


def _run(case: dict[str, Any], train_resumed: Callable[..., Any], first: int) -> dict[int, Any]:
    events: list[str] = []
    idle: list[int] = []

    def loop(data: epochs.Samples, step: epochs.Step) -> None:
        done = 0

        def counted(epoch: int, batch: Any) -> None:
            nonlocal done
            done += len(batch)
            step(epoch, batch)
            if events[-1:] != [f"steps of {epoch}"]:
                events.append(f"steps of {epoch}")

        def evaluate(epoch: int) -> None:
            until = time.monotonic() + PATIENCE * (not idle and epoch + 1 < case["epochs"])
            while data.read_by_workers() <= done and time.monotonic() < until:
                time.sleep(0.002)
            at_work = data.read_by_workers() > done and multiprocessing.active_children()
            idle.extend([epoch] * (not at_work and epoch + 1 < case["epochs"]))
            events.append(f"evaluate({epoch})")

        train_resumed(data, first, case["epochs"], counted, evaluate)

    found = epochs.orders(case["samples"], epochs.run(case["samples"], loop))
    wanted = [what.format(epoch) for epoch in range(first, case["epochs"]) for what in ("steps of {}", "evaluate({})")]
    words = "evaluate(epoch) is called once after each epoch: after its last step, and before the next one's first"
    refuse(events != wanted, words, measured=", ".join(events), expected=", ".join(wanted))
    words = f"no worker reads for the next epoch while epoch {idle and idle[0]} is evaluated: make its iterator before "
    refuse(idle, words + "evaluate, with set_epoch before that")
    return found
