"""The exercises of this lab: a script for torchrun, and five broken programs on ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks import Wrong, exercise, passed
from utils.checks.answers import Answer
from utils.checks.sandbox import require_returned, run_to_the_ends
from utils.checks.standstill import table
from utils.checks.torchrun import program_verdicts, programs, script_runs, script_verdicts


@exercise(title="A script for torchrun", difficulty=2, minutes=35, timeout=300)
def script(main: Any) -> dict[str, Any]:
    """Judge ``main(task)``: first on ranks of the course, which start quickly, then with the real torchrun."""
    reference = script_runs.reference()
    for nodes, per_node in script_runs.SHAPES:
        script_verdicts.judge(script_runs.on_ranks(main, nodes, per_node), reference, nodes, per_node)
    for (nodes, per_node), facts in script_runs.under_torchrun(main).items():
        script_verdicts.judge(facts, reference, nodes, per_node)
    return {
        "torchrun": "1 rank, 2 ranks, 2 nodes × 2 ranks",
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
    """Judge ``train_until(most, good, train_epoch, validate)`` on three ranks, and on one."""
    most = 0
    for ranks, cases in program_verdicts.LOSSES.items():
        ends = run_to_the_ends(programs.until, cases, train_until, ranks=ranks)
        found = require_returned(ends, "The ranks do not stop in the same epoch, or do not say the same things")
        most = max(most, program_verdicts.judge_until(cases, found))
    return {
        "trainings": sum(map(len, program_verdicts.LOSSES.values())),
        "ranks stop": "in the same epoch",
        "collectives for it": f"{most} an epoch",
    }


@exercise(title="All send, nobody receives", difficulty=1, minutes=15)
def neighbours(shift: Any) -> dict[str, Any]:
    """Judge ``shift(tensor)`` on one to four ranks."""
    for ranks in (2, 3, 4, 1):
        ends = run_to_the_ends(programs.shifts, shift, ranks=ranks)
        if ranks == 1 and ends[0]["state"] == "raised" and "enforce fail" in ends[0]["text"]:
            raise Wrong("With one rank, both neighbours are that rank, and gloo cannot send to itself: return a copy")
        program_verdicts.judge_shifts(require_returned(ends, "The ranks wait for each other in a circle"))
    return {"ranks": "1, 2, 3, 4", "shapes": len(programs.SHAPES), "each rank sends": "its tensor, once"}


@exercise(title="Parts of different length", difficulty=2, minutes=20)
def different_lengths(gather_all: Any) -> dict[str, Any]:
    """Judge ``gather_all(predictions)`` on three ranks, and on one."""
    most = 0
    for ranks, cases in program_verdicts.LENGTHS.items():
        try:
            ends = run_to_the_ends(programs.gathered, cases, gather_all, ranks=ranks)
            found = require_returned(ends, "The ranks wait for each other")
        except Wrong as wrong:
            if any(sign in wrong.sentence for sign in ("ended its process", "by peer", "enforce fail")):
                raise Wrong(program_verdicts.DIFFERENT, measured=f"lengths {', '.join(map(str, cases[0]))}") from None
            raise
        most = max(most, program_verdicts.judge_gathered(cases, found))
    return {"sets of lengths": sum(map(len, program_verdicts.LENGTHS.values())), "collectives": f"at most {most}"}


@exercise(title="A swallowed exception", difficulty=2, minutes=20, parts={"broken batches": 1, "other exceptions": 1})
def swallowed(train_epoch: Any) -> dict[str, Any]:
    """Judge ``train_epoch(batches, gradient, features, update)``, with broken batches and with a broken program."""
    ends = run_to_the_ends(programs.epoch, program_verdicts.STEPS, None, train_epoch, ranks=3)
    found = require_returned(ends, "A rank that skips a broken batch skips its collective too")
    talk = program_verdicts.judge_epoch(found)
    passed("broken batches")
    program_verdicts.judge_defect(
        run_to_the_ends(programs.epoch, program_verdicts.STEPS, program_verdicts.DEFECT, train_epoch, ranks=3)
    )
    return {
        "steps": len(program_verdicts.STEPS),
        "updates": f"{len(program_verdicts.right_updates())} on each rank",
        "collectives": talk,
        "another exception": "comes out",
    }


@exercise(title="A port that is taken", difficulty=2, minutes=15)
def taken_port(open_store: Any) -> dict[str, Any]:
    """Judge ``open_store(host)``: two stores on the same node at the same time."""
    ends = run_to_the_ends(programs.stores, open_store, ranks=3)
    program_verdicts.judge_stores(require_returned(ends, "The ranks wait for each other"))
    return {"jobs on one node": 2, "ranks of each": 3, "ports chosen by": "the system"}
