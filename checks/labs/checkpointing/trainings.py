"""A training in lives that are killed: what each part of the state was at each step, and what a resume has lost."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import refuse
from checks.labs.checkpointing.killing import Life, Notes, Steps, die, join, limit, live
from checks.labs.checkpointing.resume_task import Task

NAMES = {"model": "the parameters", "optimizer": "the optimizer's state", "scheduler": "the schedule's position",
         "batches": "the position in the data", "torch": "torch's random numbers",
         "python": "Python's random numbers"}  # fmt: skip
MOMENTS = "before the step", "after backward", "after the optimizer's step", "after the step"
SAVED = 2_000  # bytes of a new file: a line in a log is no save
Case = dict[str, Any]


@dataclass(frozen=True)
class Kill:
    """From ``step`` on, at this moment of a step; or in the next save: before a step with files, or at a byte."""

    step: int
    moment: str = ""
    left: int = -1
    byte: int = 0
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.moment} {self.step}" if self.moment else "inside a save"


def plan(case: Case, ranks: int = 1) -> list[Kill]:
    """The same kills for the same case. The first is in the very first save, the last before an old checkpoint goes."""
    chance, kills = random.Random(3), [Kill(0, left=1)]
    for number, step in enumerate(sorted(chance.sample(range(2, case["steps"] - case["every"]), case["kills"] - 1))):
        if number == case["kills"] - 2:  # the last one: what it keeps from going is not seen to by a later save
            kills.append(Kill(step, left=4))
        elif number % 4 == 0:
            kills.append(Kill(step, left=(0, 4, 3, 2)[number // 4 % 4]))
        elif number % 4 == 2:
            kills.append(Kill(step, byte=chance.randrange(1, 5000)))
        else:
            kills.append(Kill(step, chance.choice(MOMENTS), rank=chance.randrange(ranks)))
    return kills


def facts(parts: dict[str, Any]) -> dict[str, str]:
    """A short name for the state of each part and generator: equal only if every bit is."""
    states = {name: parts[name].state_dict() for name in NAMES if name in parts}
    return {name: _short(one) for name, one in (states | {"torch": torch.get_rng_state(),
                                                          "python": random.getstate()}).items()}  # fmt: skip


def _short(value: Any) -> str:
    def plain(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one.detach().numpy().tobytes()
        if isinstance(one, dict):
            return [(name, plain(each)) for name, each in one.items()]
        return [plain(each) for each in one] if isinstance(one, list) else repr(one)

    return hashlib.sha1(pickle.dumps(plain(value))).hexdigest()[:10]


class Watched(Task):
    """The task as the answer gets it: takes notes, and dies where it is told to."""

    def __init__(self, case: Case, folder: str, note: Notes, steps: Steps | None = None, kill: Kill | None = None):
        super().__init__(case["steps"], case["every"])
        self.folder, self.note, self.steps_with_files, self.kill = folder, note, steps, kill
        self.number, self.files, self.armed = 0, self._files(), False

    def _files(self) -> set[Any]:
        found = [one.stat() for one in os.scandir(self.folder) if one.is_file()]
        return {(one.st_ino, one.st_mtime_ns, one.st_size) for one in found if one.st_size >= SAVED}

    def step(self, number: int, parts: dict[str, Any]) -> None:
        before, self.files, self.number = self.files, self._files(), number
        saved = bool(self.files - before)
        self.note("step", number=number, saved=saved, **facts(parts))
        if saved and self.armed:  # that save took fewer steps with files
            die()
        if dist.get_world_size() > 1:
            numbers: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(numbers, number)
            told = " and ".join(f"rank {rank} with step {one}" for rank, one in enumerate(numbers))
            refuse(len(set(numbers)) > 1, f"the ranks go on from different checkpoints: {told}")
        self.moment(MOMENTS[0])
        super().step(number, parts)
        self.note("done", number=number)
        self.moment(MOMENTS[3])
        if self.kill and not self.kill.moment and number >= self.kill.step and not self.armed and self.steps_with_files:
            self.armed, self.steps_with_files.left = True, self.kill.left
            if self.kill.byte:
                limit(self.kill.byte)

    def moment(self, name: str) -> None:
        if self.kill and self.kill.moment == name and self.number >= self.kill.step:
            die()


def uninterrupted(case: Case, ranks: int = 1) -> list[list[dict[str, Any]]]:
    """Of each rank, the facts at the beginning of each step, and at the end."""

    def train(task: Task, folder: str) -> Any:
        parts = task.new()
        for number in range(task.steps):
            task.step(number, parts)
        return parts

    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        return [[*life.of("step"), *life.of("end")] for life in run(train, case, folder, ranks=ranks)]


def run(train: Callable[..., Any], case: Case, folder: str, kill: Kill | None = None, ranks: int = 1,
        **how: Any) -> list[Life]:  # fmt: skip
    """One life of a training, on so many ranks."""

    def on(rank: int, store: str) -> Callable[[Notes], None]:
        def body(note: Notes) -> None:
            torch.set_num_threads(1)
            if ranks > 1:
                join(store, rank, ranks)
                if rank:
                    limit(SMALL)
            steps = Steps(note, pauses=how.get("pauses", 0))
            answer = steps.seen(train)
            if rank and how.get("unreadable"):
                steps.unreadable = how["unreadable"]
            mine = kill if kill and kill.rank == rank else None
            task = Watched(case, folder, note, steps, mine)
            parts = answer(task, folder)
            if mine:
                die()
            fine = isinstance(parts, dict) and all(hasattr(parts.get(n), "load_state_dict") for n in list(NAMES)[:4])
            refuse(not fine, "the training returns the parts that it has trained, as task.new() gave them")
            model, words = parts["model"], "the model comes back"
            refuse(not model.training, f"{words} in eval mode: return it as it was in the training")
            frozen = not all(one.requires_grad for one in model.parameters())
            refuse(frozen, f"{words} frozen (requires_grad is False): return it as it was in the training")
            note("end", **facts(parts))

        return body

    with tempfile.TemporaryDirectory(prefix="check-") as place:
        return live(*(on(rank, f"{place}/store") for rank in range(ranks)))


SMALL = 8_000  # bytes of a file that rank 1 may write: those of process groups, in the store. No checkpoint is so small


def first_wrong(life: Life, right: list[dict[str, Any]]) -> int:
    """The first step that begins with another state, or the end."""
    wrong = [
        n["number"]
        for n in life.of("step")
        if any(n[name] != right[min(n["number"], len(right) - 1)][name] for name in NAMES)
    ]
    return wrong[0] if wrong else len(right)


def compare(life: Life, right: list[dict[str, Any]], before: str, rank: int = -1) -> None:
    """Refuse the first step that does not begin with what it would have begun with without a kill."""
    on = f" on rank {rank}" if rank >= 0 else ""
    for place, note in enumerate([*life.of("step"), *life.of("end")]):
        number = note.get("number", len(right) - 1)
        refuse(number >= len(right) - 1 and "number" in note, f"task.step is called with {number}, which is no step")
        wrong = [name for name in NAMES if note[name] != right[number][name]]
        at = "at the end" if "number" not in note else f"{before}step {number} begins{on}"
        other = [n for n, one in enumerate(right) if all(note[name] == one[name] for name in NAMES)]
        words = (
            f"{at} with the state that belongs to step {other and other[0]}: is the number that is saved off by one?"
        )
        refuse(wrong and other and abs(other[0] - number) == 1, words)
        new = wrong and [name for name in wrong if note[name] == right[0][name]]
        if wrong and place == 0 and new and {*new} <= {"torch", "python"} and {*new} == {*wrong}:
            words = f"{at}, and {_all(wrong)} are those of a new training: save them, and restore them after task.new()"
            refuse(True, f"{words} (which seeds)")
        refuse(wrong, f"{at}, and this is not what it would be without a kill: {_all(wrong)}")


def _all(names: list[str]) -> str:
    told = [NAMES[name] for name in names]
    return " and ".join([", ".join(told[:-1]), told[-1]] if told[1:] else told)
