"""The exercises of this lab: a script for torchrun, five broken programs on ranks, torchrun's line under Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks import Wrong, exercise
from checks.answers import Answer
from checks.contracts import cases_of, judge, refuse
from checks.contracts.contract import shown
from checks.sandbox import run_to_the_ends
from checks.standstill import table
from checks.torchrun import (
    broken_batches,
    gathering,
    opened_stores,
    script_runs,
    script_verdicts,
    shifting,
    slurm_lines,
    stopping,
)


@exercise(title="A script for torchrun", difficulty=2, minutes=35, timeout=300)
def script(main: Any) -> dict[str, Any]:
    """Judge ``main(task)``: first on ranks of the course, which start quickly, then with the real torchrun."""
    cases = cases_of("torchrun.script", script_runs.draw)
    reference = script_runs.reference(cases)
    for case in cases:
        try:
            found = script_runs.started(main, case)
        except Wrong as wrong:
            end = "" if wrong.sentence.endswith((".", "?")) else "."
            raise wrong.saying(f"{wrong.sentence}{end} The case: {shown(case)}.") from None
        case = case | {"reference": [reference]}
        refuse(case, script_verdicts.judge(case, found))
    return {
        "launches": ", ".join(f"{case['nodes']} × {case['per node']}" for case in cases),
        "torchrun": "the last one",
        "samples": "each once in an epoch",
        "losses and weights": "those of one process",
    }


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


@exercise(title="Stop when it is good enough", difficulty=1, minutes=15)
def stop_early(train_until: Any) -> dict[str, Any]:
    """Judge ``train_until(most, good, train_epoch, validate)``."""
    return judge(stopping.CONTRACT, train_until)


@exercise(title="To the right neighbour", difficulty=1, minutes=15)
def neighbours(shift: Any) -> dict[str, Any]:
    """Judge ``shift(tensor)``."""
    return judge(shifting.CONTRACT, shift)


@exercise(title="The predictions of all", difficulty=2, minutes=20)
def different_lengths(gather_all: Any) -> dict[str, Any]:
    """Judge ``gather_all(predictions)``."""
    return judge(gathering.CONTRACT, gather_all)


@exercise(title="Broken files", difficulty=2, minutes=20)
def swallowed(train_epoch: Any) -> dict[str, Any]:
    """Judge ``train_epoch(batches, gradient, features, update)``, with broken batches and with a broken program."""
    return judge(broken_batches.CONTRACT, train_epoch)


@exercise(title="A store of one's own", difficulty=2, minutes=15)
def taken_port(open_store: Any) -> dict[str, Any]:
    """Judge ``open_store(host)``: two stores on the same node at the same time."""
    return judge(opened_stores.CONTRACT, open_store)


@exercise(title="The same line on every node", difficulty=2, minutes=25)
def under_slurm(torchrun_line: Any) -> dict[str, Any]:
    """Judge ``torchrun_line(slurm, program)``: read by torchrun's own parser, and typed on two nodes."""
    return judge(slurm_lines.CONTRACT, torchrun_line)
