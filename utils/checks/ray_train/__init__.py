"""The exercise of this lab: a training with Ray Train that goes on after accidents."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from utils.checks import exercise, run
from utils.checks.ray_and_tuning import ray_host, tune
from utils.checks.ray_train import trainings
from utils.checks.ray_train.team import Team


@exercise(title="Go on after an accident", difficulty=3, minutes=30, timeout=800, needs=("ray",))
def goes_on(ray_train: Any) -> dict[str, Any]:
    """Judge ``ray_train(epoch, workers, epochs, accidents, storage)`` in two calls, with an accident in each."""
    run(tune.started, ray_train, 5)
    first, again = trainings.drawn()
    secret = secrets.randbits(60)
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_host.running())
        finished = (0, first.accident_in_epoch - 1)
        teams = [
            stack.enter_context(Team(one.workers, one.epochs, one.accident_in_epoch, before, secret))
            for one, before in zip((first, again), finished, strict=True)
        ]
        paths = [team.path for team in teams]
        found = run(trainings.run_trainings, ray_train, ray.address, ray.storage, paths, timeout=700)
    trainings.judge(teams, found)
    return {
        "calls": f"with {first.workers} and {again.workers} workers, in the same storage",
        "workers killed": f"in epoch {first.accident_in_epoch}, then in epoch {again.accident_in_epoch}",
        "forgiven": f"{first.accidents}, then {again.accidents}",
        "returned": f"the loss of epoch {again.epochs}",
    }
