"""The exercise of this lab: a training with Ray Train that goes on after accidents."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from checks import exercise, run
from checks.ray_and_tuning import ray_host, tune
from checks.ray_train import trainings


@exercise(title="Go on after an accident", difficulty=3, minutes=30, timeout=800, needs=("ray",))
def goes_on(ray_train: Any) -> dict[str, Any]:
    """Judge ``ray_train(epoch, workers, epochs, accidents, storage)`` in three calls, with accidents in two of them."""
    run(tune.started, ray_train, 5)
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_host.running())
        calls = [stack.enter_context(call) for call in trainings.calls(secrets.randbits(60))]
        run(trainings.run_trainings, ray_train, ray.address, ray.storage, [call.path for call in calls], timeout=700)
    drawn = trainings.drawn()
    for call in calls:
        call.judge()
    return {
        "calls": f"with {', '.join(str(one.workers) for one in drawn)} workers; the third with the first's storage",
        "workers killed": "; ".join(" and ".join(f"epoch {n}" for n in one.killed_in) or "none" for one in drawn),
        "forgiven": ", ".join(str(one.accidents) for one in drawn),
        "returned": f"the loss of epoch {drawn[-1].epochs}",
    }
