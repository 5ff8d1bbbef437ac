"""The official solutions, with which the checks compare, train what one process trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from checks.engine.refusing import same
from checks.labs.other_frameworks import trainings, workers
from checks.labs.other_frameworks.trainings import Task, horovod, tensorflow


@pytest.mark.nightly
@pytest.mark.parametrize("exercise", [horovod, tensorflow], ids=lambda exercise: exercise.name)
def test_workers_train_what_one_process_trains(exercise, monkeypatch):
    """It has the batch and the rate that all workers of Horovod have together, and those of TensorFlow share."""
    pytest.importorskip(exercise.name)
    case, times = (trainings.TRAININGS[0], 3) if exercise is horovod else (trainings.SHARED[0], 1)
    played = workers.run(exercise.name, exercise.play, case, *exercise.official.functions(), ranks=3, timeout=200)
    program: dict[str, Any] = {"__name__": "answers"}
    exec(exercise.official.program, program)
    for rank, seen in enumerate(played):
        first = rank if exercise is tensorflow and rank == trainings.MIRRORED else 0  # whose weights all begin with
        monkeypatch.setattr(dist, "get_rank", lambda first=first: first)
        task = Task(case | {"batch": times * case["batch"], "rate": times * case["rate"]})
        network = task.model()
        if exercise is tensorflow:
            for parameter, array in zip(network.parameters(), task.weights(), strict=True):
                parameter.data = torch.tensor(array).t()  # (torch keeps the transpose)
        monkeypatch.setattr(task, "model", lambda network=network: network)
        program["single_process"](task)
        losses, kept = (next(seen[name] for name in seen if part in name) for part in ("the losses", "weights in the"))
        right = [one.t() if exercise is tensorflow else one for one in task.saved[0]]
        assert same(losses, task.seen()["the losses"]) or not len(losses)
        assert same(kept, [right] * len(kept))
