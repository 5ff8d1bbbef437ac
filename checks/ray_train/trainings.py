"""``ray_train(epoch, workers, epochs, accidents, storage)``, in three calls with accidents in two of them."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from checks.contracts import Broken, refuse
from checks.inside import Outcome
from checks.ray_and_tuning import tune
from checks.ray_and_tuning.office import ask
from checks.ray_train.team import PATIENCE, Epoch, Team, register

MARK = ".validate_storage_marker"  # which Ray Train leaves in a run's folder


@dataclass(frozen=True)
class Training:
    """One call of the learner's function."""

    workers: int
    epochs: int
    accidents: int
    killed_in: tuple[int, ...]  # epochs, counted from 1
    storage: int = 0

    @property
    def survives(self) -> bool:
        """Whether so many accidents are forgiven."""
        return len(self.killed_in) <= self.accidents


def drawn() -> tuple[Training, ...]:
    """One worker keeps what two go on with; between these calls two workers, elsewhere, keep and go on themselves."""
    epochs = random.Random(f"ray_train accidents {tune.SEED_OF_CASES}").choice((5, 6))
    return (
        Training(1, epochs, 0, (4,)),
        Training(2, epochs, 1, (3, 4), storage=1),
        Training(2, epochs, 0, ()),
    )


@dataclass(kw_only=True)
class Call(Team):
    """The workers of one call, and how it has ended."""

    training: Training
    number: int
    ended: dict[str, Any] = field(default_factory=dict)

    def answer(self, asked: Any, pid: int) -> dict[str, Any]:
        """Also to the process that calls the learner's function, behind the call: whether all was right."""
        if "ended" not in asked or (pid or self.here) != self.here:
            return super().answer(asked, pid)
        self.ended = asked["ended"]
        return {"right": not any(self.broken())}

    def judge(self) -> None:
        """Refuse what breaks the contract."""
        case = {name.replace("_", " "): value for name, value in vars(self.training).items()}
        case |= {"ranks": 1, "killed in": f"epochs {self.training.killed_in}", "storage": "AB"[self.training.storage]}
        refuse(case | {"call": self.number, "drawn": tune.SEED_OF_CASES}, self.broken())

    def broken(self) -> Iterator[Broken]:
        raised, killed, training = self.ended.get("raised"), len(self.killed), self.training
        why, done = f": {raised}" if raised else "", (f"{self.finished}", f"{self.epochs}")
        accidents = f"{killed} worker{'s are' if killed > 1 else ' is'} killed, {training.accidents} such accident"
        accidents += "s are to be forgiven" if training.accidents != 1 else " is to be forgiven"
        if self.refused:
            yield Broken("value:refused", self.refused[0])
        elif not self.begun:
            yield Broken("value:calls", f"epoch is never called in a worker{why}")
        elif raised and 0 < killed <= training.accidents:
            words = f"{accidents}, and an error comes out all the same: FailureConfig(max_failures=accidents)"
            yield Broken("value:not forgiven", f"{words}. {raised}")
        elif killed > training.accidents and raised is None:
            words = f"{accidents}, and no error comes out: FailureConfig(max_failures=accidents)"
            yield Broken("value:forgiven", words)
        elif killed < len(training.killed_in) or (self.finished < self.epochs and training.survives):
            yield Broken("value:ends", f"it ends before its epochs are trained{why}", *done)
        elif training.survives and raised:
            yield Broken("value:raised", f"all epochs are trained, and then an error comes out{why}")
        elif training.survives and self.ended["returned"] != self.loss(self.epochs):
            yield Broken("value:loss", "what it returns is not the loss of the last epoch", f"{self.ended['returned']}")
        elif not self.ended["runs"]:
            words = "Ray Train's record of the run must be in storage: let it run the workers, with "
            yield Broken("value:record", f"{words}RunConfig(storage_path=storage)")


def calls(secret: int) -> Iterator[Call]:
    """The calls that are drawn, which know how many epochs those before have finished with the same storage."""
    finished = {one.storage: 0 for one in drawn()}
    for number, one in enumerate(drawn(), 1):
        before = finished[one.storage]
        yield Call(one.workers, one.epochs, one.killed_in, before, secret, training=one, number=number)
        finished[one.storage] = one.epochs if one.survives else one.killed_in[-1] - 1


def run_trainings(ray_train: Any, address: str, storage: str, paths: Sequence[str]) -> None:
    """In a rank: all calls, or those up to the first that was wrong."""
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.05"  # how soon it sees reports and deaths (2 s)
    folders = [tempfile.mkdtemp(dir=storage) for _ in range(2)]
    with tune.connected(address, storage) as leaves_all:
        register(paths)
        for training, path in zip(drawn(), paths, strict=True):
            folder = folders[training.storage]
            arguments = training.workers, training.epochs, training.accidents, folder
            try:
                with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
                    returned = ray_train(Epoch(path), *arguments)
                ended = {"returned": returned if isinstance(returned, float | int) else type(returned).__name__}
            except Outcome as outcome:
                error = outcome.__cause__
                if not isinstance(error, Exception):
                    raise
                ended = {"raised": _told(error)[:200]}
            leaves_all(ray_train)
            ended["runs"] = len(list(Path(folder).glob(f"*/{MARK}")))
            if not ask(path, {"ended": ended}, PATIENCE)["right"]:
                return


def _told(error: Exception) -> str:
    """A line for what has come out: the exception of a worker's own code, if it is one."""
    failures = getattr(error, "worker_failures", {}).values()
    own = [one for one in failures if not type(one).__module__.startswith("ray.")]
    cause = own[0] if own else error
    return f"{type(cause).__name__}: {cause}".partition("\n")[0].rstrip(":. ")
