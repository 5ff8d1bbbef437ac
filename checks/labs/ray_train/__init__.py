"""The exercise of this lab: a training with Ray Train that goes on after accidents.

trainings.py   goes_on: two calls, and what is seen of them
team.py        what the workers get: an epoch in which they meet, and in which one is killed
"""

from __future__ import annotations

from typing import Any

from checks import exercise, run
from checks.labs.ray_train import trainings


@exercise(
    title="Go on after an accident", difficulty=3, minutes=30, timeout=800, needs=("ray",), official=trainings.OFFICIAL
)
def goes_on(ray_train: Any) -> dict[str, Any]:
    """Judge ``ray_train(epoch, workers, epochs, accidents, storage)`` in two calls, with an accident in each."""
    run(trainings.train, ray_train, timeout=700)
    return {
        "calls": f"with {' and '.join(str(workers) for workers, _, _ in trainings.CALLS)} workers",
        "workers killed": " and ".join(f"in epoch {accident}" for _, _, accident in trainings.CALLS),
        "forgiven": ", ".join(str(forgiven) for _, forgiven, _ in trainings.CALLS),
        "returned": f"the loss of epoch {len(trainings.LOSSES)}",
    }
