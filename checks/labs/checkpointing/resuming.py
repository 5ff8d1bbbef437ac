"""Checks of ``train`` and ``train_on_ranks``: killed again and again, each step begins as without, bit for bit."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import to_plain
from checks.engine.processes import Died, run
from checks.engine.verdicts import Wrong
from checks.labs.checkpointing.resume_task import Task

Case = dict[str, Any]
PRELOAD = ("torch._dynamo",)  # which torch's optimizers import
ALONE, ON_RANKS = Reference("checkpointing", "train"), Reference("checkpointing", "train_on_ranks")
TROUBLE = ["cut off", "changed in one byte", "unreadable on rank 1", "empty"]
CASES: list[Case] = [{"steps": 40, "every": 5, "kills": 20}, {"steps": 12, "every": 3, "kills": 4}]
ON_RANKS_CASES: list[Case] = [CASES[0] | {"kills": 12, "trouble": TROUBLE}, CASES[1] | {"kills": 2}]
PARTS = {"model": "the parameters", "optimizer": "the optimizer's state", "scheduler": "the schedule's position",
         "batches": "the position in the data"}  # fmt: skip
NAMES = PARTS | {"torch": "torch's random numbers", "python": "Python's random numbers"}
MOMENTS = "after backward", "after the optimizer's step", "after step", "in a save", "os.rename", "os.remove"
BYTES, PAUSE = 3_000, 0.15  # of a file, where a save is killed; seconds that a rename takes longer


@exercise(title="Killed twenty times", difficulty=2, minutes=30, official=ALONE)
def resumed(train: Any) -> dict[str, Any]:
    """Judge ``train(task, folder)`` in one process, killed and started again until it is done."""
    for case in CASES:
        _play(case, train, ALONE, ranks=1)
    return {"kills": CASES[0]["kills"], "steps": f"{CASES[0]['steps']}, all bits equal"}


@exercise(title="The newest good one, on two ranks", difficulty=3, minutes=40, official=ON_RANKS)
def on_ranks(train_on_ranks: Any) -> dict[str, Any]:
    """Judge ``train_on_ranks(task, folder)`` on two ranks, with kills and damaged checkpoints."""
    for case in ON_RANKS_CASES:
        _play(case, train_on_ranks, ON_RANKS, ranks=2)
    return {"kills": 12, "damaged checkpoints": len(TROUBLE), "steps": "40, all bits equal"}


def kills(case: Case, ranks: int) -> Iterator[tuple[int, str, int]]:
    """From which step on, at which moment, on which rank: the first in the very first save."""
    chance = random.Random(3)
    yield 0, "in a save", 0
    for step in sorted(chance.sample(range(1, case["steps"] - case["every"]), case["kills"] - 1)):
        moment = chance.choice(MOMENTS[: 4 + ranks])
        yield step, moment, chance.randrange(ranks) if moment in MOMENTS[:3] else 0


@dataclass
class Life(Task):
    """The task as the answer gets it: each state is compared with the right one, and its process dies when it is to."""

    steps: int
    every: int
    folder: str
    low: int = 0  # the training goes on from this step to that one
    high: int = 0
    right: Any = None  # states at each step, by rank; none while the official solution makes them
    kill: tuple[int, str, int] | None = None
    unreadable: str = ""  # for rank 1
    pause: float = 0.0  # seconds that a rename takes
    number: int = -1  # of the step that was reached
    states: list[dict[str, int]] = field(default_factory=list)  # checksums, by NAMES
    saves: set[int] = field(default_factory=set)

    def reach(self, number: int, parts: dict[str, Any]) -> None:
        """Before each step and at the end: refuse a state that is not what it would be without a kill."""
        rank, first, begins = dist.get_rank(), not self.states, f"it begins with step {number}, and should go on from"
        refuse(not first and number != self.number + 1, "the steps are not taken in order, each of them once")
        if first:
            starts = [0] * dist.get_world_size()
            dist.all_gather_object(starts, number)
            refuse(len({*starts}) > 1, "the ranks go on from different checkpoints, by steps", measured=starts)
            refuse(number > self.high, f"{begins} {self.high}: is that checkpoint good, and its number right?")
        self.number = number
        if rank == 0:
            Path(self.folder, "../reached").write_text(str(number))
        everything = {name: part.state_dict() for name, part in parts.items()}
        everything |= {"torch": torch.get_rng_state(), "python": random.getstate()}
        self.states.append({name: zlib.crc32(repr(to_plain(one)).encode()) for name, one in everything.items()})
        if not self.right:
            return
        right, state, name = self.right[rank], self.states[-1], f"step-{number}.pt"
        if number and number % self.every == 0 and len(self.right) > 1 and not Path(self.folder, name).exists():
            refuse(True, f"it goes on before {name} is there: rank 0 gives it its name while all wait at a barrier")
        wrong = [name for name in NAMES if state[name] != right[number][name]]
        named = " and ".join(NAMES[name] for name in wrong)
        at = f"step {number} begins" if number < self.steps else "it ends"
        near = [n for n in (number - 1, number + 1) if wrong and 0 <= n <= self.steps and state == right[n]]
        refuse(near, f"{at} with the state of step {near and near[0]}: is the number that is saved off by one?")
        fault = f"{at} with other random numbers ({named}): save them, and restore them after task.new(), which seeds"
        refuse(wrong and {*wrong} <= {"torch", "python"}, fault)
        refuse(wrong, f"{at}, and this is not what it would be without a kill: {named}")
        refuse(first and number < self.low, f"{begins} {self.low}: too much work is lost")

    def step(self, number: int, parts: dict[str, Any]) -> None:
        self.reach(number, parts)
        super().step(number, parts)

    def moment(self, name: str) -> None:
        step, moment, rank = self.kill or (self.steps, "", 0)
        if rank != dist.get_rank() or self.number < step:
            return
        if moment == name or self.number > step + self.every:  # (there was no such moment)
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "in a save" and name == "after step":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """Python tells it of each step with files."""
        if event not in ("open", "os.rename", "os.remove") or not str(given[0]).startswith(f"{self.folder}/"):
            return
        rank = dist.get_rank()
        refuse(rank and event != "open", "rank 1 writes files as well: rank 0 alone writes")
        if rank and str(given[0]) == self.unreadable:
            raise OSError(5, "Input/output error", str(given[0]))
        if event == "os.rename":
            self.saves.add(self.number)
            time.sleep(self.pause)
        self.moment(event)


def live(train: Any, case: Case, lives: list[dict[str, Any]]) -> list[dict[str, int]]:
    """On each rank: a training is called for one life after the other. The states of the last one."""
    torch.set_num_threads(1)
    for life in lives:
        task = Life(case["steps"], case["every"], **life)
        sys.addaudithook(task.hear)
        parts = train(task, task.folder)
        fine = isinstance(parts, dict) and {*parts} == {*PARTS}
        refuse(not fine, "the training returns the parts that it has trained, as task.new() gave them")
        task.reach(task.steps, parts)
        fault = f"a save every {task.every} steps is enough: saving costs time"
        refuse(len(task.saves) > task.steps // task.every, fault, measured=len(task.saves))
    return task.states


def _play(case: Case, train: Any, official: Reference, ranks: int) -> None:
    """A whole training; then one that is killed again and again, and is called again after its end."""
    steps, every, troubles = case["steps"], case["every"], case.get("trouble", [])[::-1]
    with tempfile.TemporaryDirectory(prefix="check-") as place:
        official_folder, whole, killed, another = (tempfile.mkdtemp(dir=place) for _ in range(4))
        right = run(live, official.functions()[0], case, [{"folder": official_folder}], ranks=ranks)

        def go(before: str, *lives: dict[str, Any], killed: bool = False) -> None:
            try:
                run(live, train, case, [{"right": right} | life for life in lives], ranks=ranks)
            except Wrong as wrong:
                if not (killed and isinstance(wrong, Died)):
                    wrong.sentence = before + wrong.sentence
                    raise

        go("", {"folder": whole, "pause": PAUSE * (ranks - 1)})
        sure, done, before, log = 0, 0, "", Path(place, "reached")
        for number, kill in enumerate([*kills(case, ranks), None]):
            life: dict[str, Any] = {"folder": killed, "low": sure, "high": done, "kill": kill}
            newest = sorted((int(path.stem[5:]), path) for path in Path(killed).glob("step-*.pt"))[-2:]
            if number % 2 and newest[1:] and troubles:
                trouble, (good, _), (_, path) = troubles.pop(), *newest
                before = f"started again with the newest checkpoint {trouble}: "
                if "rank 1" in trouble:
                    life |= {"low": good, "unreadable": str(path)}
                else:
                    sure = done = good
                    life |= {"low": good, "high": good}
                    _damage(path, trouble)
            log.write_text("0")
            go(before, life, killed=kill is not None)
            reached = int(log.read_text())
            sure, done = max(sure, reached // every * every), max(done, reached + 1)
            before = f"started again after a kill in or after step {reached}: "
        refuse(troubles, "the training was over before all checkpoints were damaged")
        before = "called again after the end, and then in the same process with a new folder: "
        go(before, {"folder": killed, "low": steps, "high": steps}, {"folder": another})
        names = [f"step-{step}.pt" for step in range(every, steps + 1, every)]
        fault = "in the end the folder does not hold the last 3 checkpoints (or 2), named by steps, and nothing else"
        for files in [sorted(os.listdir(folder)) for folder in (whole, killed) if ranks > 1]:
            refuse(files not in (sorted(names[-3:]), sorted(names[-2:])), fault, measured=", ".join(files[:5]))


def _damage(path: Path, how: str) -> None:
    """A file is cut off, empty, or has another byte in the middle of its largest tensor."""
    content, tensor = bytearray(path.read_bytes()), b""
    if "byte" not in how:
        return os.truncate(path, len(content) // 2 * (how == "cut off"))
    if zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        tensor = max((archive.read(name) for name in archive.namelist() if "/data/" in name), key=len)
    content[content.index(tensor) + len(tensor or content) // 2] ^= 64
    path.write_bytes(content)
