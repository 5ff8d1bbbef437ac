"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

scripts.py          script: on ranks of the course; script_starts.py: with the real torchrun; training_task.py: its task
stopping.py         stop_early: when all ranks stop
shifting.py         neighbours: a ring of messages
gathering.py        different_lengths: parts of all ranks
broken_batches.py   swallowed: broken batches, and mistakes that come out
opened_stores.py    taken_port: a port that the system chooses
typed_lines.py      typed: a line that bash types on every node
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks import Wrong, exercise
from checks.engine import judge
from checks.engine.answers import Answer
from checks.engine.processes import run_to_the_ends
from checks.engine.standstill import table
from checks.labs.torchrun import (
    broken_batches,
    gathering,
    opened_stores,
    script_starts,
    scripts,
    shifting,
    stopping,
    typed_lines,
)


@exercise(title="A script for torchrun", difficulty=2, minutes=35, timeout=300, official=scripts.OFFICIAL)
def script(main: Any) -> dict[str, Any]:
    """Judge ``main(task)``: first on ranks of the course, which start quickly, then with the real torchrun."""
    found = judge(scripts.OFFICIAL, scripts.play, scripts.CASES, main, ranks=(4, 3, 1))
    script_starts.start(main)
    return found | {"torchrun": "2 ranks"}


@exercise(title="Typed on every node", difficulty=1, minutes=25, timeout=600, official=typed_lines.OFFICIAL)
def typed(torchrun_line: Any) -> dict[str, Any]:
    """Judge ``torchrun_line()``: what it returns is typed for real, on two nodes and on one."""
    return typed_lines.start(torchrun_line)


def show(function: Callable[[], Any], ranks: int = 2) -> None:
    """For the lab: run a function of the notebook on ranks, and print how each rank ended and what it returned."""
    from lessons.launchers.failures.diagnose import plain

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


@exercise(title="Stop when it is good enough", difficulty=1, minutes=15, official=stopping.OFFICIAL)
def stop_early(train_until: Any) -> dict[str, Any]:
    """Judge ``train_until(most, good, train_epoch, validate)``."""
    return judge(stopping.OFFICIAL, stopping.play, stopping.CASES, train_until, ranks=(3, 2, 1))


@exercise(title="To the right neighbour", difficulty=1, minutes=15, official=shifting.OFFICIAL)
def neighbours(shift: Any) -> dict[str, Any]:
    """Judge ``shift(tensor)``."""
    return judge(shifting.OFFICIAL, shifting.play, shifting.CASES, shift, ranks=(4, 3, 2, 1))


@exercise(title="The predictions of all", difficulty=2, minutes=20, official=gathering.OFFICIAL)
def different_lengths(gather_all: Any) -> dict[str, Any]:
    """Judge ``gather_all(predictions)``."""
    return judge(gathering.OFFICIAL, gathering.play, gathering.CASES, gather_all, ranks=(3, 4, 1))


@exercise(title="Broken files", difficulty=2, minutes=20, official=broken_batches.OFFICIAL)
def swallowed(train_epoch: Any) -> dict[str, Any]:
    """Judge ``train_epoch(batches, gradient, features, update)``, with broken batches and with a broken program."""
    return judge(broken_batches.OFFICIAL, broken_batches.play, broken_batches.CASES, train_epoch, ranks=(3, 4, 1))


@exercise(title="A store of one's own", difficulty=2, minutes=15, official=opened_stores.OFFICIAL)
def taken_port(open_store: Any) -> dict[str, Any]:
    """Judge ``open_store(host)``: two stores on the same node at the same time."""
    return judge(opened_stores.OFFICIAL, opened_stores.play, opened_stores.CASES, open_store, ranks=(3, 1))
