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


@exercise(OFFICIAL, title="Go on after an accident", difficulty=3, minutes=30, timeout=800, needs=("ray",))
def goes_on(ray_train: Any) -> dict[str, Any]:
    """Judge ``ray_train(epoch, workers, epochs, accidents, storage)`` in two calls, with an accident in each."""
    run(train, ray_train, timeout=700)
    figures = {"calls": "with 1 and 2 workers", "workers killed": "in epoch 3 and in epoch 4", "forgiven": "0, 1"}
    return figures | {"returned": f"the loss of epoch {len(LOSSES)}"}


def train(ray_train: Any) -> None:
    """In a fresh process: both calls."""
    with rays.running(ray_train, notes, team) as storage:
        folder, finished = tempfile.mkdtemp(dir=storage), 0
        for workers, accidents, accident in CALLS:
            epoch = team.Epoch(f"{folder}.{workers}", workers, accident, finished, os.getpid())
            returned = failure = None
            try:
                returned = ray_train(epoch, workers, len(LOSSES), accidents, folder)
            except Outcome as outcome:
                failure = outcome
            seen = notes.read(epoch.path)
            finished, why = epoch.done(seen), _raised(failure)
            rays.still_running()
            refuse(not seen, f"epoch is never called in a worker{why}")
            figures, early = {"measured": finished, "expected": len(LOSSES)}, "it ends before its epochs are trained"
            refuse(not any("killed" in note for note in seen), f"{early}{why}", **figures)
            fault = f"a worker is killed, no accident is to be forgiven, and no error comes out: {FORGIVE}"
            refuse(not accidents and not failure, fault)
            fault = f"a worker is killed, {accidents} accident is to be forgiven, and an error comes out: {FORGIVE}"
            refuse(accidents and failure, f"{fault}{why}", **figures)
            refuse(accidents and finished < len(LOSSES), early, **figures)
            fault = "Ray Train's record of the run must be in storage: RunConfig(storage_path=storage)"
            refuse(not any(Path(folder).rglob(MARK)), fault)
        fault = "what it returns is not the loss of the last epoch"
        refuse(returned != LOSSES[-1], fault, measured=str(returned)[:60], expected=LOSSES[-1])


def _raised(failure: Outcome | None) -> str:
    """The exception that has come out, in a line: of a worker's own code, if it is one."""
    error: Any = failure and (failure.__cause__ or failure)
    own = [one for one in getattr(error, "worker_failures", {}).values() if not type(one).__module__.startswith("ray.")]
    error = own[0] if own else error
    return f": {type(error).__name__}: {error}".partition("\n")[0].rstrip(":. ")[:200] if error else ""
