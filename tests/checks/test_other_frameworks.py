"""The official solutions of this lab, with which checks compare, train what one process trains."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from checks.engine.refusing import same
from checks.labs.other_frameworks import replicas, scaling, workers
from utils.training.same_training import Batches

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


def _tensorflow(case: dict[str, Any]) -> dict[str, Any]:
    return {**replicas.play(case, *replicas.OFFICIAL.functions()), "start": replicas.Task(case).weights()}


@pytest.mark.nightly
def test_replicas_of_tensorflow_train_what_one_process_trains():
    pytest.importorskip("tensorflow")
    case = replicas.CASES[0]
    found = workers.run("tensorflow", _tensorflow, case, ranks=replicas.RANKS, timeout=200)
    for first, seen in ((0, found[0]), (0, found[1]), (2, found[2])):
        weights = [torch.as_tensor(one).requires_grad_() for one in found[first]["start"]]
        losses = []
        for step in range(case["steps"]):
            images, labels = map(torch.tensor, Batches()[step])
            logits = (images @ weights[0] + weights[1]).relu() @ weights[2] + weights[3]
            losses.append(torch.nn.functional.cross_entropy(logits, labels))
            for weight, gradient in zip(weights, torch.autograd.grad(losses[-1], weights), strict=True):
                weight.data -= case["rate"] * gradient
        shown = next(value for name, value in seen.items() if name.startswith("the losses"))
        assert same(shown, torch.stack(losses).detach())
        kept = next(value for name, value in seen.items() if name.startswith("the weights"))
        assert same(kept, [weights] * len(kept))
