"""The exercises of lab 09: a script for torchrun, and five broken programs on ranks."""

from __future__ import annotations

from typing import Any

from utils.checks import Wrong, exercise, judge_script_09, judges_09, programs_09, torchrun_09
from utils.checks.waits_09 import End, require_returned, run_watched

LAB = "09_torchrun"


@exercise(lab=LAB, title="A script for torchrun", difficulty=2, minutes=35, timeout=150)
def script(main: Any) -> dict[str, Any]:
    """Judge ``main(task)``: first on ranks of the course, which start quickly, then with the real torchrun."""
    reference = torchrun_09.reference()
    for nodes, per_node in torchrun_09.SHAPES:
        judge_script_09.judge(torchrun_09.on_ranks(main, nodes, per_node), reference, nodes, per_node)
    for (nodes, per_node), facts in torchrun_09.under_torchrun(main).items():
        judge_script_09.judge(facts, reference, nodes, per_node)
    return {
        "torchrun": "1 rank, 2 ranks, 2 nodes × 2 ranks",
        "samples": "each once in an epoch",
        "losses and weights": "those of one process",
    }


def _values(ends: list[End], lead: str) -> list[Any]:
    require_returned(ends, lead)
    return [end["value"] for end in ends]


@exercise(lab=LAB, title="A rank that leaves", difficulty=1, minutes=15, timeout=60)
def stop_early(train_until: Any) -> dict[str, Any]:
    """Judge ``train_until(most, good, train_epoch, validate)`` on three ranks, and on one."""
    most = 0
    for ranks, cases in judges_09.LOSSES.items():
        ends = run_watched(programs_09.until, cases, train_until, ranks=ranks)
        found = _values(ends, "The ranks do not stop in the same epoch, or do not say the same things")
        most = max(most, judges_09.judge_until(cases, found))
    return {
        "trainings": sum(map(len, judges_09.LOSSES.values())),
        "ranks stop": "in the same epoch",
        "collectives for it": f"{most} an epoch",
    }


@exercise(lab=LAB, title="All send, nobody receives", difficulty=1, minutes=15, timeout=60)
def neighbours(shift: Any) -> dict[str, Any]:
    """Judge ``shift(tensor)`` on one to four ranks."""
    for ranks in (2, 3, 4, 1):
        ends = run_watched(programs_09.shifts, shift, ranks=ranks)
        if ranks == 1 and ends[0]["state"] == "raised" and "enforce fail" in ends[0]["text"]:
            raise Wrong("With one rank, both neighbours are that rank, and gloo cannot send to itself: return a copy")
        judges_09.judge_shifts(_values(ends, "The ranks wait for each other in a circle"))
    return {"ranks": "1, 2, 3, 4", "shapes": len(programs_09.SHAPES), "each rank sends": "its tensor, once"}


@exercise(lab=LAB, title="Parts of different length", difficulty=2, minutes=20, timeout=60)
def different_lengths(gather_all: Any) -> dict[str, Any]:
    """Judge ``gather_all(predictions)`` on three ranks, and on one."""
    most = 0
    for ranks, cases in judges_09.LENGTHS.items():
        try:
            ends = run_watched(programs_09.gathered, cases, gather_all, ranks=ranks)
            found = _values(ends, "The ranks wait for each other")
        except Wrong as wrong:
            if any(sign in wrong.sentence for sign in ("ended its process", "by peer", "enforce fail")):
                raise Wrong(judges_09.DIFFERENT, measured=f"lengths {', '.join(map(str, cases[0]))}") from None
            raise
        most = max(most, judges_09.judge_gathered(cases, found))
    return {"sets of lengths": sum(map(len, judges_09.LENGTHS.values())), "collectives": f"at most {most}"}


@exercise(lab=LAB, title="A swallowed exception", difficulty=2, minutes=20, timeout=60)
def swallowed(train_epoch: Any) -> dict[str, Any]:
    """Judge ``train_epoch(batches, gradient, features, update)``, with broken batches and with a broken program."""
    ends = run_watched(programs_09.epoch, judges_09.STEPS, None, train_epoch, ranks=3)
    talk = judges_09.judge_epoch(_values(ends, "A rank that skips a broken batch skips its collective too"))
    judges_09.judge_defect(run_watched(programs_09.epoch, judges_09.STEPS, judges_09.DEFECT, train_epoch, ranks=3))
    return {
        "steps": len(judges_09.STEPS),
        "updates": f"{len(judges_09.right_updates())} on each rank",
        "collectives": talk,
        "another exception": "comes out",
    }


@exercise(lab=LAB, title="A port that is taken", difficulty=2, minutes=15, timeout=60)
def taken_port(open_store: Any) -> dict[str, Any]:
    """Judge ``open_store(host)``: two stores on the same node at the same time."""
    ends = run_watched(programs_09.stores, open_store, ranks=3)
    judges_09.judge_stores(_values(ends, "The ranks wait for each other"))
    return {"jobs on one node": 2, "ranks of each": 3, "ports chosen by": "the system"}
