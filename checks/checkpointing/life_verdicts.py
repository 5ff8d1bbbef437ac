"""Verdicts on trainings that were killed: is every step what it was without, and if not, why?"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from checks.checkpointing.file_verdicts import STRAY, Found, judge_files, judge_saves, judge_waiting, on
from checks.checkpointing.lives import FAILED, Life, first_failure
from checks.contracts import Broken, Case, Facts
from checks.verdicts import NotStarted

CALLS = 4  # in one process: with an empty folder, twice after the end, with the folder emptied
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
PARTS = ("model", "optimizer", "scheduler", "batches")
NAMES = {
    "model": "the parameters",
    "optimizer": "the optimizer's state",
    "scheduler": "the schedule's position",
    "batches": "the position in the data",
    "torch": "torch's random numbers",
    "python": "Python's random numbers",
}
Steps = list[dict[str, Any]]  # the notes of a rank's steps without a break, by number


def _raise_failure(record: dict[str, str], before: str = "") -> None:
    """What a process failed with, with words in front."""
    if record["kind"] == "not started":
        raise NotStarted
    raise Found(before + record["sentence"], **{"measured": record["figures"]} if record.get("figures") else {})


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    try:
        _judge_lives(world[0], case)
    except Found as found:
        yield found.broken


def _judge_lives(found: Facts, case: Case) -> None:
    """The uninterrupted run, then each life in turn, then the end."""
    ranks, kills_planned = case["training ranks"], case["kills"]
    reference = [Life(**life) for life in found["reference"]]
    right = [[*life.of("step"), *life.of("end")] for life in reference]
    _judge_whole(found["whole"], right, case)
    done = kills = 0
    for number, told in enumerate(found["killed"]):
        lives = [Life(**life) for life in told["lives"]]
        before = found["killed"][number - 1]["kill"] if number else ""
        if ranks > 1 and number <= kills_planned:
            _judge_start(lives, told, done, before, case)
        _judge_steps(lives, right)
        if ranks == 1 and number <= kills_planned:
            _judge_start(lives, told, done, before, case)
        if ranks > 1:
            judge_waiting(lives)
        _judge_ended(lives, before, told["trouble"], bool(told["kill"]))
        starts = [note["number"] for note in lives[0].of("step")]
        done = max([done, *(note["number"] + 1 for life in lives for note in life.of("done"))])
        kills += any(life.ended in KILLED for life in lives)
        if number == kills_planned + 1 and starts:
            raise Found(
                "called again after the end, train goes on training: the last checkpoint says that all steps are done",
                measured=f"steps {starts}",
                expected="none",
            )
        if not told["kill"]:
            for rank, life in enumerate(lives):
                _compare(life.of("end")[0], right[rank][-1], f"at the end{on(rank, ranks)}", right, rank)
    if kills < kills_planned:
        words = "the training was over before all kills: is it saved when it should be?"
        raise Found(words, measured=kills, expected=kills_planned)
    if ranks > 1:
        judge_files(found["files"], case)
    _judge_again([Life(**life) for life in found["again"]], right, case)


def _judge_again(lives: list[Life], right: list[Steps], case: Case) -> None:
    """What a call has kept in the process must not get into the next one."""
    ranks, every = case["training ranks"], case["every"]
    where = "called again in one process, with another folder, and with that one emptied,"
    _judge_ended(lives, where=where)
    for rank, life in enumerate(lives):
        steps, expected = len(life.of("step")), 2 * (len(right[rank]) - 1)
        if steps != expected:
            words = f"{where} {'the training does not begin anew' if steps < expected else 'it trains too often'}"
            words += f"{on(rank, ranks)}: does it keep something from the call before, or lose its last checkpoint?"
            raise Found(words, measured=f"{steps} steps", expected=f"{expected} steps")
    _judge_steps(lives, right, where)
    judge_saves(lives[0], 2 * case["steps"] // every, f"{where} it saves more often than every {every} steps")
    for rank, life in enumerate(lives):
        for end in life.of("end"):
            _compare(end, right[rank][-1], f"{where} at the end{on(rank, ranks)}", right, rank)
        told = life.of("again")[0]
        if other := told["other than at first"]:
            words = (
                f"called again in one process, and at last with the first folder again, {_list(other)}{on(rank, ranks)}"
            )
            raise Found(
                f"{words} are not what that folder's checkpoint holds: does it keep something from another call?"
            )
        if told["elsewhere"]:
            raise Found(STRAY.format(on(rank, ranks)), ", ".join(told["elsewhere"][:3]), "none")
        for kind, came in told["comes out"].items():
            if came:
                words = f"an error in task.step does not come out{on(rank, ranks)}: nobody hears that training failed"
                raise Found(words, came[:200], f"that {kind}")


def _judge_whole(whole: dict[str, Any], right: list[Steps], case: Case) -> None:
    ranks, steps, every = case["training ranks"], case["steps"], case["every"]
    lives = [Life(**life) for life in whole["lives"]]
    around = [note["folder"] for life in lives for note in life.of("around")]
    wrote = around and any(os.path.realpath(note["path"]).startswith(f"{around[0]}/") for note in lives[-1].of("open"))
    if len(lives) > 1 and (wrote or lives[1].ended == -signal.SIGXFSZ):
        raise Found("rank 1 writes files as well: rank 0 alone writes, once.")
    _judge_ended(lives)
    for rank, life in enumerate(lives):
        numbers = [note["number"] for note in life.of("step")]
        if numbers != list(range(steps)):
            raise Found(
                f"a run without a break does not take the steps 0 to {steps - 1} once each, in order{on(rank, ranks)}",
                measured=f"{len(numbers)} steps, from {min(numbers, default=None)} to {max(numbers, default=None)}",
                expected=f"{steps} steps",
            )
    _judge_steps(lives, right, "in a run without a break")
    for rank, life in enumerate(lives):
        if left := life.of("end")[0]["left"]:
            raise Found(f"{left}{on(rank, ranks)}")
        if other := [name for note in life.of("around") for name in note["other"]]:
            raise Found(f"train leaves {other[0]} other than before{on(rank, ranks)}: put back what you change")
        if strays := life.written_outside(life.of("around")[0]["folder"]):
            raise Found(STRAY.format(on(rank, ranks)), strays[0], "none")
    for rank, life in enumerate(lives):
        _compare(life.of("end")[0], right[rank][-1], "at the end of a run without a break", right, rank)
    if not whole["files"]:
        raise Found("train leaves no file in the folder: nothing is saved.")
    judge_saves(lives[0], steps // every, f"a save every {every} steps is enough")
    if ranks > 1:
        if not any(re.fullmatch(r"step-\d+\.pt", name) for name in whole["files"]):
            raise Found("checkpoints are to be named step-5.pt, step-10.pt, …", measured=", ".join(whole["files"]))
        if beside := [name for name in whole["files"] if not re.fullmatch(r"step-\d+\.pt", name)]:
            words = "other files stay beside the checkpoints: one file for each checkpoint, and what it needs is in it"
            raise Found(words, ", ".join(beside[:3]), "none")
        judge_waiting(lives)


def _judge_ended(
    lives: list[Life], before: str = "", trouble: str = "", planned: bool = False, where: str = ""
) -> None:
    after = where.rstrip(",")
    if before:
        after = f"started again after a kill {before}" + (
            f", with the newest checkpoint {_told(trouble)}" if trouble else ""
        )
    record = own_failure(lives) if planned else first_failure(lives)
    if record is not None:
        _raise_failure(record, f"{after}: " if after else "")
    if planned and any(life.ended in KILLED for life in lives):
        return
    if any(life.ended is None for life in lives):
        steps = [len(life.of("done")) for life in lives]
        raise Found(
            f"{after + ', ' if after else ''}the ranks wait for each other: does one of them not take part in a "
            "collective, such as a barrier inside an `if`?"
            if len(lives) > 1
            else f"{after + ', ' if after else ''}train never ends",
            measured=f"steps done: {steps}",
        )
    if any(life.ended not in (0, FAILED, *KILLED) for life in lives):
        raise Found(f"{after}: train ended its process", measured=[life.ended for life in lives])


_LOST_CONNECTION = ("onnection", "Broken pipe")  # how gloo says that another rank is gone


def own_failure(lives: list[Life]) -> dict[str, str] | None:
    """The record of the rank that failed first, unless it failed because another one was killed."""
    record = first_failure(lives)
    lost = (
        record is not None
        and any(sign in record["sentence"] for sign in _LOST_CONNECTION)
        and any(life.ended in KILLED for life in lives)
    )
    return None if lost else record


def _told(trouble: str) -> str:
    return (
        "unreadable on rank 1" if trouble == "unreadable" else f"damaged ({trouble})" if "byte" in trouble else trouble
    )


def _judge_start(lives: list[Life], told: dict[str, Any], done: int, before: str, case: Case) -> None:
    """Does a life begin where the newest good checkpoint says?"""
    ranks, every = case["training ranks"], case["every"]
    starts = [life.of("step")[0]["number"] for life in lives if life.of("step")]
    if not starts:
        return
    start, after = starts[0], f"started again after a kill {before}" if before else "at the first start"
    if ranks == 1:
        if start < done - every:
            raise Found(
                f"{after}, too much work is lost: train goes on with step {start}",
                measured=f"{done - start} steps done again",
                expected=f"at most {every}",
            )
        return
    if told["trouble"]:
        after += f", with the newest checkpoint {_told(told['trouble'])}"
    if len(set(starts)) > 1:
        each = ", ".join(f"rank {rank} with step {number}" for rank, number in enumerate(starts))
        raise Found(f"{after}: the ranks go on from different checkpoints: {each}")
    good = [*sorted((int(step) for step, whole in told["there"].items() if whole), reverse=True), 0]
    if start in map(int, told["there"]) and start > good[0]:
        raise Found(f"{after}: train goes on from it all the same, as if it were whole.")
    if not good[0] and done > every:
        raise Found(f"{after}: no good checkpoint is left, so keep more than one.")
    if start not in good[: 2 if told["trouble"] == "unreadable" else 1]:
        raise Found(
            f"{after}: train does not go on from the newest good checkpoint",
            measured=f"step {start}",
            expected=f"step {good[0]}",
        )


def _judge_steps(lives: list[Life], right: list[Steps], where: str = "") -> None:
    """All steps of all ranks in order: one rank's fault spoils the others a step later."""
    steps = sorted((note["number"], rank) for rank, life in enumerate(lives) for note in life.of("step"))
    notes = [{note["number"]: note for note in life.of("step")} for life in lives]
    for number, rank in steps:
        if not 0 <= number < len(right[rank]) - 1:
            raise Found("task.step is called with a number that is no step", measured=number)
        place = where or f"after a resume, at step {number}{on(rank, len(lives))}"
        started = lives[rank].of("new")[-1] if lives[rank].of("new") else {}
        _compare(notes[rank][number], right[rank][number], place, right, rank, started)


def _compare(
    now: dict[str, Any], then: dict[str, Any], place: str, right: list[Steps], rank: int, started: Any = None
) -> None:
    """Every part and generator is what it was at this step of the run without a break."""
    wrong = [name for name in NAMES if now[name] != then[name]]
    if not wrong:
        return
    number = now.get("number", len(right[rank]) - 1)
    if "model" in wrong:
        others = [k for k, note in enumerate(right[rank]) if note["model"] == now["model"]]
        if others and others[0] and all(now[name] == right[rank][others[0]][name] for name in PARTS):
            raise Found(
                "the number of the step does not fit the state: it is off by one, or saved at another moment",
                measured=f"step {number} begins with the state after {others[0]} steps",
                expected=f"the state after {number}",
            )
    generators = [name for name in wrong if name in ("torch", "python")]
    if wrong == generators:
        here = _list(generators)
        if rank and all(now[name] == right[0][number][name] for name in generators):
            raise Found(f"{place} {here} are those of rank 0: each rank has its own, save all of them.")
        if started and all(started.get(name) == then[name] for name in generators):
            raise Found(f"{place} {here} are wrong: they are restored before task.new(), which seeds them again.")
    text = _list(wrong)
    verb = "are" if len(wrong) > 1 or wrong[0] in ("model", "torch", "python") else "is"
    those = "they were" if verb == "are" else "it was"
    right_ones = "task.step alone makes of that" if "run without a break" in place else f"{those} without a break"
    raise Found(f"{place} {text} {verb} not what {right_ones}.")


def _list(names: list[str]) -> str:
    return " and ".join(", ".join(NAMES[name] for name in names).rsplit(", ", 1))
