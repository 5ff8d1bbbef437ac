"""Check of ``train``: twenty kills, and each step begins as it would have without them, bit for bit."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from checks.engine import Reference, refuse
from checks.labs.checkpointing.killing import Life, Notes, live
from checks.labs.checkpointing.trainings import Watched, compare, facts, plan, run, uninterrupted

OFFICIAL = Reference("checkpointing", "train")
CASES = [{"steps": 40, "every": 5, "kills": 20}, {"steps": 12, "every": 3, "kills": 4}]
NEW = "does it keep something from the call before, or write elsewhere than into the folder?"


def play(case: dict[str, Any], train: Any) -> dict[str, Any]:
    [right] = uninterrupted(case)
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        os.chdir(root)
        os.mkdir("whole")
        [life] = run(train, case, f"{root}/whole")
        whole(life, right, case)
        os.mkdir("killed")
        sure, done, last = 0, 0, ""
        for kill in [*plan(case), None, None]:
            [life] = run(train, case, f"{root}/killed", kill)
            before = f"started again after a kill {last}: " if last else ""
            life.raise_failure(before)
            compare(life, right, before)
            started(life, sure, done, case, before)
            words = "the training was over before all kills: is it saved when it should be?"
            refuse(kill and not life.killed, words)
            finished, done = done == case["steps"], max([done, *(note["number"] + 1 for note in life.of("done"))])
            words = "called again after the end, it goes on training: the last checkpoint says that all steps are done"
            refuse(finished and not last and life.of("step"), words)
            sure = max([sure, *(note["number"] // case["every"] * case["every"] for note in life.of("step"))])
            last = str(kill or "")
        _in_one_process(train, case, root)
        os.chdir("/")
    return {"kills": case["kills"], "steps": f"{done}, all bits equal"}


def whole(life: Life, right: list[dict[str, Any]], case: dict[str, Any]) -> None:
    """A life without a kill."""
    life.raise_failure()
    numbers = [note["number"] for note in life.of("step")]
    refuse(
        numbers != list(range(case["steps"])),
        "a whole training takes each step once, in order",
        measured=f"{len(numbers)} steps",
    )
    compare(life, right, "without any kill, ")
    most, saves = case["steps"] // case["every"], sum(note["saved"] for note in life.of("step"))
    words = f"a save every {case['every']} steps is enough: saving costs time"
    refuse(saves >= most, words, measured=f"{saves} steps began with a new checkpoint", expected=f"{most - 1}")


def started(life: Life, sure: int, done: int, case: dict[str, Any], before: str) -> None:
    """At most so many steps are done again, and none is left out."""
    first = [note["number"] for note in life.of("step")][:1]
    words = f"{before}it begins with step {first and first[0]}, and {done} were done: too much work is lost"
    refuse(first and first[0] < sure, f"{words} with a checkpoint every {case['every']} steps")
    words = (
        f"{before}it begins with step {first and first[0]}, and only {done} were done: is the number saved off by one?"
    )
    refuse(first and first[0] > done, words)


def _in_one_process(train: Any, case: dict[str, Any], root: str) -> None:
    def body(note: Notes) -> None:
        for folder in ("a", "a", "b"):
            os.makedirs(folder, exist_ok=True)
            note("call")
            note("parts", **facts(train(Watched(case, f"{root}/{folder}", note), f"{root}/{folder}")))

    [life] = live(body)
    life.raise_failure("called several times in one process: ")
    calls = "".join(note["what"][0] for note in life.notes if note["what"] in ("call", "step")).split("c")[1:]
    words = "called again after the end in the same process, it goes on training"
    refuse(calls[1], words, measured=f"{len(calls[1])} steps", expected="none")
    words = f"called with another folder in the same process, it does not begin anew: {NEW}"
    refuse(len(calls[2]) != case["steps"], words, measured=f"{len(calls[2])} steps", expected=case["steps"])
