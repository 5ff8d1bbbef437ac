"""``ray_train(epoch, workers, epochs, accidents, storage)``, in two calls with an accident each."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from utils.checks.contracts import Broken, refuse
from utils.checks.inside import Outcome
from utils.checks.ray_and_tuning import tune
from utils.checks.ray_train.team import Epoch, Team, register

MARK = ".validate_storage_marker"  # which Ray Train leaves in a run's folder


@dataclass(frozen=True)
class Training:
    """One call of the learner's function."""

    workers: int
    epochs: int
    accidents: int
    accident_in_epoch: int


def drawn() -> tuple[Training, Training]:
    """The accident of the first call is not forgiven, that of the second one is."""
    rng = random.Random(f"ray_train accidents {tune.SEED_OF_CASES}")
    first = rng.choice((1, 2))
    epochs = rng.choice((5, 6))
    return Training(first, epochs, 0, 3), Training(3 - first, epochs, 1, epochs)


def run_trainings(ray_train: Any, address: str, storage: str, paths: Sequence[str]) -> dict[str, Any]:
    """In a rank: what each call returns or raises, and where Ray Train has written."""
    ended = []
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.05"  # how soon it sees reports and deaths (2 s)
    folder = tempfile.mkdtemp(dir=storage)
    with tune.connected(address, storage):
        register(paths)
        for training, path in zip(drawn(), paths, strict=True):
            arguments = training.workers, training.epochs, training.accidents, folder
            try:
                with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
                    returned = ray_train(Epoch(path), *arguments)
                ended.append({"returned": returned if isinstance(returned, float | int) else type(returned).__name__})
            except Outcome as outcome:
                error = outcome.__cause__
                if not isinstance(error, Exception):
                    raise
                ended.append({"raised": _told(error)[:200]})
    return {"ended": ended, "runs": len(list(Path(folder).glob(f"*/{MARK}")))}


def _told(error: Exception) -> str:
    """A line for what has come out: the exception of a worker's own code, if it is one."""
    failures = getattr(error, "worker_failures", {}).values()
    own = [one for one in failures if not type(one).__module__.startswith("ray.")]
    cause = own[0] if own else error
    return f"{type(cause).__name__}: {cause}".partition("\n")[0].rstrip(":. ")


def judge(teams: Sequence[Team], found: dict[str, Any]) -> None:
    """Refuse what breaks the contract, the first call first."""
    for number, (training, team, ended) in enumerate(zip(drawn(), teams, found["ended"], strict=True)):
        case = {name.replace("_", " "): value for name, value in vars(training).items()}
        case |= {"ranks": 1, "call": number + 1, "drawn": tune.SEED_OF_CASES}
        refuse(case, _judge(training, team, ended))
        if not found["runs"]:
            words = "Ray Train's record of the run must be in storage: let it run the workers, with "
            words += "RunConfig(storage_path=storage)"
            refuse(case, [Broken("value:record", words)])


def _judge(training: Training, team: Team, ended: dict[str, Any]) -> Iterator[Broken]:
    raised, returned = ended.get("raised"), ended.get("returned")
    if team.refused:
        yield Broken("value:refused", team.refused[0])
    elif not team.begun:
        words = "epoch is never called in a worker"
        yield Broken("value:calls", f"{words}: {raised}" if raised else words)
    elif not team.killed and (raised or team.finished < training.epochs):
        words = "it ends before its epochs are trained"
        yield Broken("value:ends", f"{words}: {raised}" if raised else words, f"{team.finished}", f"{training.epochs}")
    elif training.accidents == 0 and raised is None:
        words = "a worker is killed, no accident is to be forgiven, and no error comes out"
        yield Broken("value:forgiven", f"{words}: FailureConfig(max_failures=accidents)")
    elif training.accidents and raised:
        words = "a worker is killed, one accident is to be forgiven, and an error comes out all the same"
        yield Broken("value:not forgiven", f"{words}: FailureConfig(max_failures=accidents). {raised}")
    elif training.accidents and team.finished < training.epochs:
        yield Broken("value:ends", "not all epochs are trained", f"{team.finished}", f"{training.epochs}")
    elif training.accidents and returned != team.loss(training.epochs):
        yield Broken("value:loss", "what it returns is not the loss of the last epoch", f"{returned}")
