"""Checks of ``train`` and ``train_on_ranks``: killed again and again, each step begins as without, bit for bit."""

from __future__ import annotations

import io
import itertools
import os
import random
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import to_plain
from checks.engine.processes import run
from checks.labs.checkpointing.killing import Life, Notes, die, join, limit, live, overheard, raise_first
from checks.labs.checkpointing.resume_task import Task

ALONE, ON_RANKS = Reference("checkpointing", "train"), Reference("checkpointing", "train_on_ranks")
TROUBLE = ["cut off", "changed in one byte", "unreadable on rank 1", "empty"]
CASES = [{"steps": 40, "every": 5, "kills": 20}, {"steps": 12, "every": 3, "kills": 4}]
ON_RANKS_CASES = [{"steps": 40, "every": 5, "kills": 12, "trouble": TROUBLE}, {"steps": 12, "every": 3, "kills": 2}]
NAMES = {"model": "the parameters", "optimizer": "the optimizer's state", "scheduler": "the schedule's position",
         "batches": "the position in the data", "torch": "torch's random numbers",
         "python": "Python's random numbers"}  # fmt: skip
MOMENTS = "before step", "after backward", "after the optimizer's step", "after step"
SAVED, PAUSE = 2_000, 0.15  # bytes of a new file (a line in a log is no save); seconds that a rename takes longer
Case = dict[str, Any]


@exercise(title="Killed twenty times", difficulty=2, minutes=30, official=ALONE)
def resumed(train: Any) -> dict[str, Any]:
    """Judge ``train(task, folder)`` in one process, killed and started again until it is done."""
    for case in CASES:
        run(play, case, train, 1, timeout=90)
    return {"kills": CASES[0]["kills"], "steps": f"{CASES[0]['steps']}, all bits equal"}


@exercise(title="The newest good one, on two ranks", difficulty=3, minutes=40, official=ON_RANKS)
def on_ranks(train_on_ranks: Any) -> dict[str, Any]:
    """Judge ``train_on_ranks(task, folder)`` on two ranks, with kills and damaged checkpoints."""
    for case in ON_RANKS_CASES:
        run(play, case, train_on_ranks, 2, timeout=90)
    return {"kills": 12, "damaged checkpoints": len(TROUBLE), "steps": "40, all bits equal"}


@dataclass(frozen=True)
class Kill:
    """From ``step`` on, at this moment: of a step, or of a save (before a step with files, or at a byte)."""

    step: int
    moment: str
    byte: int = 0
    rank: int = 0

    def __str__(self) -> str:
        return "inside a save" if self.byte or "." in self.moment else f"{self.moment} {self.step}"


def plan(case: Case, ranks: int) -> list[Kill]:
    """The same kills for the same case, the first in the very first save."""
    chance, kills = random.Random(3), [Kill(0, "after step", byte=1000)]
    for number, step in enumerate(sorted(chance.sample(range(1, case["steps"] - case["every"]), case["kills"] - 1))):
        moments = [Kill(step, chance.choice(MOMENTS), rank=chance.randrange(ranks)), Kill(step, "os.rename")]
        moments += [Kill(step, "after step", byte=chance.randrange(1, 5000)), Kill(step, "os.remove")]
        kills.append(moments[number % 4])
    return kills


class Watched(Task):
    """The task as the answer gets it: notes the state at each step, and dies where it is told to."""

    def __init__(self, case: Case, folder: str, note: Notes, rank: int, ranks: int, kill: Kill | None) -> None:
        super().__init__(case["steps"], case["every"])
        self.folder, self.note, self.rank, self.ranks, self.kill, self.number = folder, note, rank, ranks, kill, -1

    def state(self, number: int, parts: dict[str, Any]) -> None:
        states: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        states |= {"torch": torch.get_rng_state(), "python": random.getstate()}
        files = [one.stat() for one in os.scandir(self.folder) if one.is_file()]
        saved = [f"{one.st_ino} {one.st_mtime_ns}" for one in files if one.st_size >= SAVED]
        facts = {name: zlib.crc32(repr(to_plain(state)).encode()) for name, state in states.items()}
        self.note("state", number=number, saved=saved, **facts)
        name = f"step-{number}.pt"
        words = f"rank {self.rank} goes on, and there is no {name} yet: rank 0 gives it its name while all wait at a "
        named = number % self.every or not number or self.ranks == 1 or Path(self.folder, name).exists()
        refuse(not named, f"{words}barrier")

    def step(self, number: int, parts: dict[str, Any]) -> None:
        self.number = number
        if self.kill and number > self.kill.step + self.every:  # there was no such moment
            die()
        self.state(number, parts)
        self.moment(MOMENTS[0])
        super().step(number, parts)
        self.note("done", number=number)
        self.moment(MOMENTS[3])

    def moment(self, name: str) -> None:
        if self.kill and self.kill.moment == name and self.number >= self.kill.step:
            limit(self.kill.byte) if self.kill.byte else die()


def lives(train: Any, case: Case, folders: list[str], ranks: int, kill: Kill | None = None, unreadable: str = "",
          pause: float = 0) -> list[Life]:  # fmt: skip
    """One life of a training on so many ranks: called with one folder after the other."""

    def on(rank: int, store: str) -> Callable[[Notes], None]:
        def body(note: Notes) -> None:
            torch.set_num_threads(1)
            mine = kill if kill and kill.rank == rank else None

            def hear(event: str, given: Any) -> None:
                refuse(rank and event in ("os.rename", "os.remove"), "rank 1 writes files as well: rank 0 alone writes")
                if rank and event == "open" and unreadable == str(given):
                    raise OSError(5, "Input/output error", unreadable)
                time.sleep(pause if event == "os.rename" else 0)
                task.moment(event)

            if ranks > 1:
                join(store, rank, ranks)
            task = Watched(case, "", note, rank, ranks, None)
            answer = overheard(train, hear)
            for folder in folders:
                task = Watched(case, folder, note, rank, ranks, mine)
                parts = answer(task, folder)
                if mine:
                    die()
                fine = isinstance(parts, dict) and set(parts) == set(list(NAMES)[:4])
                refuse(not fine, "the training returns the parts that it has trained, as task.new() gave them")
                task.state(case["steps"], parts)

        return body

    with tempfile.TemporaryDirectory(prefix="check-") as place:
        return live(*(on(rank, f"{place}/store") for rank in range(ranks)))


def play(case: Case, train: Any, ranks: int) -> None:
    sure, done, before, kills, troubles = 0, 0, "without any kill: ", plan(case, ranks), case.get("trouble", [])[::-1]
    steps, every, official = case["steps"], case["every"], (ALONE, ON_RANKS)[ranks - 1].functions()[0]
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        folders = [f"{root}/{name}" for name in ("official", "whole", "killed", "another")]
        for folder in folders:
            os.mkdir(folder)
        right = [life.of("state") for life in lives(official, case, folders[:1], ranks)]
        whole = lives(train, case, folders[1:2], ranks, pause=PAUSE * (ranks - 1))
        raise_first(whole)
        _whole(whole, right, case, "a whole training takes each step once, in order")
        saved = [{*note["saved"]} for note in whole[0].of("state")[:-1]]
        saves = sum(bool(after - before) for before, after in itertools.pairwise(saved))
        words = f"a save every {every} steps is enough: saving costs time"
        refuse(saves >= steps // every, words, measured=f"{saves} before the last step")
        if ranks > 1:
            _files(folders[1], case)
        for number, kill in enumerate([*kills, None]):
            low, high, unreadable = sure, done, ""
            newest = sorted((int(one.stem[5:]), one) for one in Path(folders[2]).glob("step-*.pt"))[-2:]
            if number % 2 and newest[1:] and troubles:
                trouble, low = troubles.pop(), newest[0][0]
                before = f"started again with the newest checkpoint {trouble}: "
                unreadable = str(newest[1][1]) * ("rank 1" in trouble)
                if not unreadable:
                    sure = done = high = low
                    newest[1][1].write_bytes(_damaged(newest[1][1].read_bytes(), trouble))
            found = lives(train, case, folders[2:3], ranks, kill, unreadable)
            start = _start(found, low)
            words = "is that checkpoint good?" if "newest" in before else "is the number that is saved off by one?"
            refuse(start > high, f"{before}it begins with step {start}, and should go on from {high}: {words}")
            struck = kill and found[kill.rank].ended < 0
            raise_first([found[kill.rank]] if kill and struck else found, before)
            _compare(found, right, before)
            words = f"{before}it begins with step {start}, and there is a good checkpoint of step {low}"
            refuse(start < low, f"{words}: too much work is lost")
            begun = [note["number"] for note in found[0].of("state")]
            sure = max([sure, *(one // every * every for one in begun)])
            done = max([done, *begun[-1:], *(note["number"] + 1 for note in found[0].of("done"))])
            before = f"started again after a kill {kill}: "
        refuse(troubles, "the training was over before all checkpoints were damaged")
        last = lives(train, case, folders[2:], ranks)
        raise_first(last, "called again after the end: ")
        words = (
            "called again after the end, and then in the same process with a new folder, it does not do no step and "
        )
        _whole(last, right, case, f"{words}then all of them: does it keep something, or write elsewhere?")
        if ranks > 1:
            _files(folders[2], case)


def _whole(lives: list[Life], right: Any, case: Case, words: str) -> None:
    for life in lives:
        numbers = [note["number"] for note in life.of("done")]
        refuse(numbers != [*range(case["steps"])], words, measured=f"{len(numbers)} steps", expected=case["steps"])
    _compare(lives, right, "")


def _start(lives: list[Life], low: int) -> int:
    """The step with which all ranks begin; ``low``, if they do none."""
    first = [life.of("state")[0]["number"] for life in lives if life.of("state")]
    words = " and ".join(f"rank {rank} with step {step}" for rank, step in enumerate(first))
    refuse(len(set(first)) > 1, f"the ranks go on from different checkpoints: {words}")
    return first[0] if first else low


def _compare(lives: list[Life], right: list[list[dict[str, Any]]], before: str) -> None:
    """Refuse the first state that is not what it would have been without a kill."""
    notes = [(note["number"], rank, note) for rank, life in enumerate(lives) for note in life.of("state")]
    for number, rank, note in sorted(notes, key=lambda one: one[0]):
        wrong = [name for name in NAMES if note[name] != right[rank][number][name]]
        on = f" on rank {rank}" if lives[1:] else ""
        at = f"{before}step {number} begins{on}" if number < len(right[rank]) - 1 else f"{before}at the end{on}"
        near = [
            n
            for n in (number - 1, number + 1)
            if all(note[name] == right[rank][n % len(right[rank])][name] for name in NAMES)
        ]
        refuse(
            wrong and near, f"{at} with the state of step {near and near[0]}: is the number that is saved off by one?"
        )
        named = " and ".join(NAMES[name] for name in wrong)
        words = f"{at} with other random numbers ({named}): save them, and restore them after task.new(), which seeds"
        refuse(wrong and {*wrong} <= {"torch", "python"}, words)
        refuse(wrong, f"{at}, and this is not what it would be without a kill: {named}")


def _files(folder: str, case: Case) -> None:
    names = [f"step-{step}.pt" for step in range(case["every"], case["steps"] + 1, case["every"])]
    found = sorted(os.listdir(folder))
    words = "in the end the folder does not hold the last 3 checkpoints (or 2), named by their steps, and nothing else"
    refuse(found not in (sorted(names[-3:]), sorted(names[-2:])), words, measured=", ".join(found[:5]))


def _damaged(content: bytes, how: str) -> bytes:
    """Cut off, empty, or with another byte in the middle of its largest tensor."""
    if "byte" not in how:
        return content[: len(content) // 2 if how == "cut off" else 0]
    place = len(content) // 2
    if content.startswith(b"PK"):
        archive = zipfile.ZipFile(io.BytesIO(content))
        tensor = max((archive.read(name) for name in archive.namelist() if "/data/" in name), key=len)
        place = content.index(tensor) + len(tensor) // 2
    return content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :]
