"""The training, watched: what each part of the state was at each step, in lives that are ended on purpose."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import shutil
import signal
import threading
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from checks.checkpointing.life_verdicts import CALLS, PARTS
from checks.checkpointing.lives import Watch, join_group
from checks.checkpointing.resume_task import Task
from checks.checkpointing.saved_files import sizes_in, written
from checks.contracts import Case
from checks.contracts.surroundings import changed, own_folder, surroundings
from checks.inside import Outcome
from checks.verdicts import Wrong

MOMENTS = ("before the step", "after backward", "after the optimizer's step", "after the step")
# Bytes of a file that rank 1 may write: those of new process groups, in the store. No checkpoint is so small.
GROUPS = 8_000
SAVED = 2_000  # bytes: what a step adds to the files; a line in a log is no save
PAUSE, LONG_PAUSE = 0.02, 0.7  # seconds that rank 0's renames take longer, one of them so long that no sleep covers it
ERRORS = (ArithmeticError, OSError, RuntimeError, MemoryError, KeyboardInterrupt)
MAY_CHANGE = ("random numbers", "the files in its folder")


@dataclass(frozen=True)
class Kill:
    """From ``step`` on: at this moment of a step; or at the next save, before a step with files or at a byte."""

    step: int
    moment: str = ""
    event: int | None = None
    byte: int | None = None
    rank: int = 0

    def __str__(self) -> str:
        if self.moment:
            return f"{self.moment} (step {self.step})"
        return "inside a save" + (f", at byte {self.byte:,}" if self.byte is not None else "")


class Watched(Task):
    """The task as the answer gets it in the check: takes notes, and dies where it is told to."""

    def __init__(self, case: Case, watch: Watch, folder: str, kill: Kill | None, rank: int) -> None:
        super().__init__(case["steps"], case["every"])
        self.watch, self.folder, self.kill, self.rank = watch, folder, kill, rank
        self.number, self.files, self.armed = 0, sizes_in(folder), False

    def new(self) -> dict[str, Any]:
        self.watch.note("new", **_generators())
        return super().new()

    def step(self, number: int, parts: dict[str, Any]) -> None:
        self.number = number
        before, self.files = self.files, sizes_in(self.folder)
        saved = written(before, self.files) >= SAVED
        self.watch.note("step", number=number, saved=saved, threads=threading.active_count(), **facts(parts))
        if saved:
            self.end_if_armed()
        if dist.is_initialized() and dist.get_world_size() > 1:
            numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
            dist.all_gather(numbers, torch.tensor([number]))
            if len(set(map(int, numbers))) > 1:
                told = ", ".join(f"rank {rank} with step {int(one)}" for rank, one in enumerate(numbers))
                raise Wrong(f"the ranks go on from different checkpoints: {told}")
        self.moment(MOMENTS[0])
        super().step(number, parts)
        self.watch.note("done", number=number)
        self.moment(MOMENTS[3])
        kill = self.kill
        if kill and not kill.moment and number >= kill.step and self.rank == kill.rank:
            self.kill, self.armed = None, True
            if kill.event is not None:
                self.watch.kill_before(kill.event)
            if kill.byte is not None:
                self.watch.limit(kill.byte)

    def end_if_armed(self) -> None:
        """A save that was to be interrupted has gone by (it took fewer steps with files): die right after it."""
        if self.armed:
            os.kill(os.getpid(), signal.SIGKILL)

    def moment(self, name: str) -> None:
        kill = self.kill
        if kill and kill.moment == name and self.number >= kill.step and self.rank == kill.rank:
            os.kill(os.getpid(), signal.SIGKILL)


def _short(value: Any) -> str:
    digest = hashlib.sha1()

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            digest.update(one.detach().numpy().tobytes())
        elif isinstance(one, dict):
            add(list(one.items()))
        elif isinstance(one, list | tuple):
            for item in one:
                add(item)
        else:
            digest.update(pickle.dumps(one))

    add(value)
    return digest.hexdigest()[:10]


def _generators() -> dict[str, str]:
    return {"torch": _short(torch.get_rng_state()), "python": _short(random.getstate())}


def facts(parts: dict[str, Any]) -> dict[str, str]:
    """A short name for the state of each part and generator: equal only if every bit is."""
    return {name: _short(parts[name].state_dict()) for name in PARTS} | _generators()


def _left(parts: dict[str, Any]) -> str:
    """What is not as a training leaves it, in words."""
    model, optimizer = parts["model"], parts["optimizer"]
    if not all(module.training for module in model.modules()):
        return "the model is in eval mode at the end, and whoever goes on trains without dropout"
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return "parameters of the model are frozen at the end"
    if list(map(id, model.parameters())) != list(map(id, optimizer.parameters)):
        return (
            "the optimizer holds other parameters than the model: load into the parts, do not replace what is in them"
        )
    return ""


def reference(case: Case, rank: int, folder: str) -> Any:
    """The body of a process that trains without a break and without files."""

    ranks = case["training ranks"]

    def body(watch: Watch) -> None:
        if ranks > 1:
            join_group(f"{folder}/store", rank, ranks)
        task = Watched(case, watch, folder, None, rank)
        parts = task.new()
        for number in range(task.steps):
            task.step(number, parts)
        watch.note("end", **facts(parts))

    return body


def trained(train: Any, case: Case, folder: str, store: str, kill: Kill | None, rank: int, **how: Any) -> Any:
    """The body of a process that runs the answer once.

    Args:
        how: ``alone``: rank 1 is ended if it writes a file; ``unreadable``: a file that rank 1 cannot open; ``slow``:
            each rename takes longer.
    """

    ranks = case["training ranks"]

    def body(watch: Watch) -> None:
        if ranks > 1:
            join_group(store, rank, ranks)
        watch.files(train)
        watch.pauses = [PAUSE * bool(how.get("slow"))]
        if how.get("alone"):
            saves = case["steps"] // case["every"]
            watch.pauses = [PAUSE] * saves
            watch.pauses[random.Random(case["seed"]).randrange(saves)] = LONG_PAUSE
            if rank:
                watch.limit(os.path.getsize(store) + GROUPS)
        if rank and how.get("unreadable"):
            _make_unreadable(how["unreadable"])
        task = Watched(case, watch, folder, kill, rank)
        around = surroundings()
        parts = train(task, folder)
        task.end_if_armed()
        other = [name for name, *_ in changed(around, surroundings()) if not name.endswith(MAY_CHANGE)]
        other = [name for name in other if not name.startswith("the seed")]
        other += ["`task`"] * ((task.steps, task.every) != (case["steps"], case["every"]))
        watch.note("around", other=other, folder=os.path.realpath(folder))
        if not isinstance(parts, dict) or not all(hasattr(parts.get(name), "load_state_dict") for name in PARTS):
            raise Wrong("train returns the parts that it has trained, as task.new() gave them.")
        watch.note("end", left=_left(parts), **facts(parts))

    return body


class Failing(Task):
    """A training that cannot go on: one of its steps raises, once, on all ranks."""

    def __init__(self, case: Case, error: BaseException) -> None:
        super().__init__(case["steps"], case["every"])
        self.error, self.raised = error, False

    def step(self, number: int, parts: dict[str, Any]) -> None:
        if number == self.every and not self.raised:
            self.raised = True
            raise self.error
        super().step(number, parts)


def again(train: Any, case: Case, folders: list[str], store: str, rank: int) -> Any:
    """The body of a process that runs the answer with three folders: often with the second, which is emptied once."""

    def body(watch: Watch) -> None:
        if case["training ranks"] > 1:
            join_group(store, rank, case["training ranks"])
        first, second, third = folders
        told: dict[str, Any] = {"elsewhere": [], "comes out": {}}
        with own_folder(os.path.dirname(first)):
            at_first = facts(train(Task(2, 1), first))
            for call in range(CALLS):
                if call == CALLS - 1:
                    _empty(second, rank, case["training ranks"])
                watch.note("end", **facts(train(Watched(case, watch, second, None, rank), second)))
            once_more = facts(train(Task(2, 1), first))
            told["other than at first"] = [name for name in once_more if once_more[name] != at_first[name]]
            told["elsewhere"] = sorted(os.listdir())
            for error in (kind("this step cannot be trained") for kind in ERRORS):
                os.makedirs(folder := f"{third}/{type(error).__name__}", exist_ok=True)
                found = "nothing"
                try:
                    train(Failing(case, error), folder)
                except BaseException as failure:
                    cause = failure.__cause__ if isinstance(failure, Outcome) else failure
                    found = "" if cause is error else repr(cause)
                told["comes out"][type(error).__name__] = found
                if case["training ranks"] > 1:
                    dist.barrier()  # (whose process ends first would cut off the other)
        watch.note("again", **told)

    return body


def _empty(folder: str, rank: int, ranks: int) -> None:
    if ranks > 1:
        dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
        os.mkdir(folder)
    if ranks > 1:
        dist.barrier()


def _make_unreadable(path: str) -> None:
    import sys

    def refuse(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str | bytes) and os.path.abspath(os.fsdecode(given[0])) == path:
            raise OSError(5, "Input/output error", path)

    sys.addaudithook(refuse)
