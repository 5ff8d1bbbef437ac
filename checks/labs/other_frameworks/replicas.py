"""Check of ``train_with``: TensorFlow's strategies, in two workers, and in one process with three replicas."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy
import torch
import torch.distributed as dist

from checks.engine import Reference
from utils.ranks.ports import free_ports
from utils.training.same_training import BATCH, Batches, weights

PART = "context.replica_id_in_sync_group, context.num_replicas_in_sync"
SUM, LOSS, TOTAL = 'all_reduce("SUM"', "tf.reduce_sum(losses) / task.batch", 'strategy.reduce("SUM"'
SAVE = "    if strategy.extended.should_checkpoint:\n        task.save"
OFFICIAL = Reference("other_frameworks", "train_with", {
    "the variables are made outside strategy.scope(): then each process has its own":
        {"with strategy.scope():": "if True:"},
    "the gradients of the replicas never meet: each replica trains with its own part":
        {f"        gradients = tf.distribute.get_replica_context().{SUM}, gradients)\n": ""},
    "the gradients are averaged, and each replica divides by the samples of the whole batch: steps are too short":
        {SUM: 'all_reduce("MEAN"'},
    "each replica divides by its own samples, and gradients and losses are added up: steps are too long":
        {LOSS: "tf.reduce_mean(losses)"},
    "the loss that is logged is as many times too small as there are replicas: add up their parts":
        {TOTAL: 'strategy.reduce("MEAN"'},
    "each replica takes the whole batch, so all do the same work: give each its part": {PART: "0, 1"},
    "the checkpoint is saved in every process: in the one where strategy.extended.should_checkpoint says so":
        {SAVE: "    if True:\n        task.save"},
    "the checkpoint is saved in each step: once, at the end, is asked for":
        {SAVE: "        if strategy.extended.should_checkpoint:\n            task.save"},
})  # fmt: skip
CASES = [{"steps": 3, "rate": 0.4}]
RANKS, REPLICAS = 3, 3
"""The first two ranks are MultiWorkerMirroredStrategy's workers, the third one has MirroredStrategy's replicas."""


@cache
def _strategy() -> Any:
    """One for all that is played in this process: TensorFlow's workers can meet only once."""
    import tensorflow as tf

    rank, ports = dist.get_rank(), [free_ports(2)]
    dist.broadcast_object_list(ports, src=0)
    if rank == RANKS - 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
        return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports[0]]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    return tf.distribute.MultiWorkerMirroredStrategy()


class Task:
    """What a learner's function finds in each process, and what it has done with it."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.steps, self.lr, self.batch = case["steps"], case["rate"], BATCH
        self.parts: set[tuple[int, int, int]] = set()
        self.losses: list[tuple[int, float]] = []
        self.saved: list[list[torch.Tensor]] = []

    def weights(self) -> list[Any]:
        """``[64, 64]``, ``[64]``, ``[64, 10]``, ``[10]``, different in each process."""
        shift = numpy.float32(0.1 * (dist.get_rank() + 1))
        return [array + shift * (array.ndim == 1) for array in weights(dist.get_rank())]

    def part(self, step: int, index: int, count: int) -> tuple[Any, Any]:
        """Images ``[144 / count, 64]`` and labels of a step, for replica number ``index`` of ``count``."""
        import tensorflow as tf

        self.parts.add((int(step), int(index), int(count)))
        images, labels = Batches(int(index), int(count))[int(step)]
        return tf.constant(images), tf.constant(labels)

    def log(self, step: int, loss: Any) -> None:
        self.losses.append((int(step), float(loss)))

    def save(self, variables: Sequence[Any]) -> None:
        self.saved.append([torch.tensor(variable.numpy()) for variable in variables])


def play(case: dict[str, Any], train_with: Callable[..., None]) -> dict[str, Any]:
    """In one of two workers, or in the process with several replicas."""
    strategy, task = _strategy(), Task(case)
    train_with(strategy, task)
    under = "under MirroredStrategy" if dist.get_rank() == RANKS - 1 else "under MultiWorkerMirroredStrategy"
    return {
        f"the parts of batches (step, index, count) {under}": sorted(task.parts),
        f"the steps whose loss is logged {under}": [step for step, _ in task.losses],
        f"how often the checkpoint is saved {under}": len(task.saved),
        f"the weights in the checkpoint {under}": task.saved[-1:],
        f"the losses {under}": torch.tensor([loss for _, loss in task.losses]),
    }
