"""``show``, for the lab: how a program of the notebook ends on each rank, without a verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks import Wrong
from checks.engine.answers import Answer
from checks.engine.processes import run_to_the_ends
from checks.engine.standstill import table
from lessons.launchers.failures.diagnose import plain


def show(function: Callable[[], Any], ranks: int = 2) -> None:
    """Run a function of the notebook on ranks, and print how each rank ended and what it returned."""
    try:
        ends = run_to_the_ends(Answer.of(function, "the program"), ranks=ranks)
    except Wrong as died:
        return print(died.sentence)
    print(table(ends))
    for rank, end in enumerate(ends):
        if end["state"] == "raised":
            print(f"rank {rank}: {plain(end['text'])}")
        elif end.get("value") is not None:
            print(f"rank {rank} returned {end['value']}")
