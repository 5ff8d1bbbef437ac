"""The official solution for Horovod, with which its check compares, trains what one process trains."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from checks.engine.refusing import same
from checks.labs.other_frameworks import scaling, workers

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # (workers cannot import tests)


def _by_one_process(case: dict[str, Any]) -> dict[str, Any]:
    """The lab's program for one process, with the batch and the rate that all workers have together."""
    program: dict[str, Any] = {"__name__": "answers"}
    exec(scaling.OFFICIAL.program, program)
    task, count = scaling.Task(case), dist.get_world_size()
    task.model = lambda: task.network  # type: ignore[method-assign]
    scaling.Task.model(task)
    for parameter in task.network.parameters():
        dist.broadcast(parameter.data, src=0)
    task.batch, task.lr = task.batch * count, task.lr * count
    program["single_process"](task)
    return {"the losses": torch.tensor([loss for _, loss in task.losses]), "the final weights": task.saved[-1]}


def _horovod_beside_one_process(case: dict[str, Any]) -> list[str]:
    """What differs."""
    seen, right = scaling.play(case, *scaling.OFFICIAL.functions()), _by_one_process(case)
    return [name for name in right if not same(seen[name], right[name]) and len(seen[name])]


@pytest.mark.nightly
def test_horovod_trains_what_one_process_trains():
    pytest.importorskip("horovod")
    found = workers.run("horovod", _horovod_beside_one_process, scaling.CASES[0], ranks=3, timeout=200)
    assert found == [[]] * 3
