"""Check of ``ray_train``: called twice with the same storage, and in each call a worker is killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.inside import Outcome
from checks.engine.processes import run
from checks.labs.ray_and_tuning import notes, rays
from checks.labs.ray_train import team
from checks.labs.ray_train.team import LOSSES

OFFICIAL = Reference("ray_train", "ray_train")
CALLS = ((1, 0, 3), (2, 1, 4))  # workers, accidents that are forgiven, the epoch in which one happens
MARK = ".validate_storage_marker"  # which Ray Train leaves in a run's folder
FORGIVE = "FailureConfig(max_failures=accidents)"


def train(ray_train: Any) -> None:
    """In a fresh process: both calls."""
    with rays.running(ray_train, notes, team) as storage:
        folder, finished = tempfile.mkdtemp(dir=storage), 0
        for workers, accidents, accident in CALLS:
            noted = notes.Notes(f"{folder}.{workers}")
            epoch = team.Epoch(noted, workers, accident, finished, os.getpid())
            returned = failure = None
            try:
                returned = ray_train(epoch, workers, len(LOSSES), accidents, folder)
            except Outcome as outcome:
                failure = outcome
            found = noted.read()
            finished = epoch.done(found)
            rays.still_running("ray_train")
            _judge_end(accidents, found, finished, failure)
            words = "Ray Train's record of the run must be in storage: let it run the workers, with "
            refuse(not any(Path(folder).rglob(MARK)), f"{words}RunConfig(storage_path=storage)")
        words = "what it returns is not the loss of the last epoch"
        refuse(returned != LOSSES[-1], words, measured=str(returned)[:60], expected=LOSSES[-1])


def _judge_end(accidents: int, found: list[dict[str, Any]], finished: int, failure: Outcome | None) -> None:
    why, figures = _told(failure), {"measured": finished, "expected": len(LOSSES)}
    refuse(not found, f"epoch is never called in a worker{why}")
    killed = any("killed" in note for note in found)
    refuse(not killed, f"it ends before its epochs are trained{why}", **figures)
    words = f"a worker is killed, no such accident is to be forgiven, and no error comes out: {FORGIVE}"
    refuse(not accidents and not failure, words)
    if accidents:
        words = f"a worker is killed, 1 such accident is to be forgiven, and an error comes out all the same: {FORGIVE}"
        refuse(failure and finished < len(LOSSES), f"{words}{why}")
        refuse(finished < len(LOSSES), "it ends before its epochs are trained", **figures)
        refuse(failure, f"all epochs are trained, and then an error comes out{why}")


def _told(failure: Outcome | None) -> str:
    """A line for what has come out: the exception of a worker's own code, if it is one."""
    if not failure:
        return ""
    error = failure.__cause__ or failure
    own = [one for one in getattr(error, "worker_failures", {}).values() if not type(one).__module__.startswith("ray.")]
    cause = own[0] if own else error
    return f": {type(cause).__name__}: {cause}".partition("\n")[0].rstrip(":. ")[:200]


@exercise(title="Go on after an accident", difficulty=3, minutes=30, timeout=800, needs=("ray",), official=OFFICIAL)
def goes_on(ray_train: Any) -> dict[str, Any]:
    """Judge ``ray_train(epoch, workers, epochs, accidents, storage)`` in two calls, with an accident in each."""
    run(train, ray_train, timeout=700)
    return {
        "calls": f"with {' and '.join(str(workers) for workers, _, _ in CALLS)} workers",
        "workers killed": " and ".join(f"in epoch {accident}" for _, _, accident in CALLS),
        "forgiven": ", ".join(str(forgiven) for _, forgiven, _ in CALLS),
        "returned": f"the loss of epoch {len(LOSSES)}",
    }
