"""The exercises of this lab: a script for torchrun, and five broken programs on ranks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from utils.checks import Wrong, exercise
from utils.checks.answers import Answer
from utils.checks.contracts import judge
from utils.checks.contracts.judging import SEED
from utils.checks.sandbox import run_to_the_ends
from utils.checks.standstill import table
from utils.checks.torchrun import (
    broken_batches,
    gathering,
    opened_stores,
    script_runs,
    script_verdicts,
    shifting,
    stopping,
)


@exercise(title="A script for torchrun", difficulty=2, minutes=35, timeout=300)
def script(main: Any) -> dict[str, Any]:
    """Judge ``main(task)``: first on ranks of the course, which start quickly, then with the real torchrun."""
    seed = os.environ.get(SEED, "0")
    rng = random.Random(f"torchrun.script {seed}")
    given, (on_ranks, launched) = script_runs.drawn(rng), script_runs.shapes(rng)
    reference = script_runs.reference(given, {nodes * per_node for nodes, per_node in (*on_ranks, *launched)})
    try:
        for nodes, per_node in on_ranks:
            script_verdicts.judge(script_runs.on_ranks(main, given, nodes, per_node), reference, nodes, per_node)
        for (nodes, per_node), facts in script_runs.under_torchrun(main, given, launched).items():
            script_verdicts.judge(facts, reference, nodes, per_node)
    except Wrong as wrong:
        task = f"{given['samples']} samples, batch {given['batch']}, {given['epochs']} epochs, seed {seed}"
        raise wrong.saying(f"{wrong.sentence.rstrip('.')}. See a task of {task}.") from None
    return {
        "torchrun": ", ".join(f"{nodes} × {per_node}" for nodes, per_node in launched),
        "samples": "each once in an epoch",
        "losses and weights": "those of one process",
    }


def show(function: Callable[[], Any], ranks: int = 2) -> None:
    """For the lab: run a function of the notebook on ranks, and print how each rank ended and what it returned."""
    from utils.launchers.failures.log_lines import plain

    try:
        ends = run_to_the_ends(_call, Answer.of(function, "the program"), ranks=ranks)
    except Wrong as died:
        return print(died.sentence)
    print(table(ends))
    for rank, end in enumerate(ends):
        if end["state"] == "raised":
            print(f"rank {rank}: {plain(end['text'])}")
        elif end.get("value") is not None:
            print(f"rank {rank} returned {end['value']}")


def _call(function: Callable[[], Any]) -> Any:
    return function()


@exercise(title="A rank that leaves", difficulty=1, minutes=15)
def stop_early(train_until: Any) -> dict[str, Any]:
    """Judge ``train_until(most, good, train_epoch, validate)``."""
    return judge(stopping.CONTRACT, train_until)


@exercise(title="All send, nobody receives", difficulty=1, minutes=15)
def neighbours(shift: Any) -> dict[str, Any]:
    """Judge ``shift(tensor)``."""
    return judge(shifting.CONTRACT, shift)


@exercise(title="Parts of different length", difficulty=2, minutes=20)
def different_lengths(gather_all: Any) -> dict[str, Any]:
    """Judge ``gather_all(predictions)``."""
    return judge(gathering.CONTRACT, gather_all)


@exercise(title="A swallowed exception", difficulty=2, minutes=20)
def swallowed(train_epoch: Any) -> dict[str, Any]:
    """Judge ``train_epoch(batches, gradient, features, update)``, with broken batches and with a broken program."""
    return judge(broken_batches.CONTRACT, train_epoch)


@exercise(title="A port that is taken", difficulty=2, minutes=15)
def taken_port(open_store: Any) -> dict[str, Any]:
    """Judge ``open_store(host)``: two stores on the same node at the same time."""
    return judge(opened_stores.CONTRACT, open_store)
