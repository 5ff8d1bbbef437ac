"""Checks of ``train``, ``train_with`` and ``train_on``: one training with Horovod, TensorFlow and JAX."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, zip_longest
from types import SimpleNamespace
from typing import Any

import numpy
import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import in_steps
from checks.labs.other_frameworks import workers
from utils.ranks.ports import free_ports
from utils.training.same_training import BATCH, Batches, weights

BROADCAST = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
WRAP, NAMED = "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n", "named_parameters())"
LOG, SAVE = "        if rank == 0:\n            task.log", "    if rank == 0:\n        task.save"
HOROVOD = Reference("other_frameworks", "train", {
    "the workers start with different weights: give them all those of worker 0 before the first step": {BROADCAST: ""},
    "no gradient is ever averaged, and each worker trains for itself: wrap the optimizer with Horovod's": {WRAP: ""},
    "the rate suits the batch of one worker: with more workers the whole batch is larger, and the rate should be too":
        {"lr=task.lr * workers": "lr=task.lr"},
    "gradients are added up, and the rate is scaled as well: one of the two is enough":
        {NAMED: "named_parameters(), op=hvd.Sum)"},
    "all workers read the same samples, so all do the same work: let each read its own":
        {"numbers[rank::workers]": "numbers[: task.batch]"},
    "each worker takes a part of one process's batch: it takes task.batch samples itself":
        {"whole = task.batch * workers": "whole = task.batch"},
    "the loss that is logged is that of worker 0's samples, not the mean over the whole batch":
        {"mean = hvd.allreduce(loss.detach())": "mean = loss.detach()"},
    "every worker logs: only worker 0 does": {LOG: "        if True:\n            task.log"},
    "every worker saves, and all would write the same file": {SAVE: "    if True:\n        task.save"},
    "the local rank is counted on each node, and all these workers have 0": {"hvd.rank()": "hvd.local_rank()"},
})  # fmt: skip
TRAININGS = [{"steps": 7, "batch": 32, "rate": 0.1}, {"steps": 3, "batch": 16, "rate": 0.25}]

PART = "context.replica_id_in_sync_group, context.num_replicas_in_sync"
SUM, LOSS, TOTAL = 'all_reduce("SUM"', "tf.reduce_sum(losses) / task.batch", 'strategy.reduce("SUM"'
KEEP = "    if strategy.extended.should_checkpoint:\n        task.save"
TENSORFLOW = Reference("other_frameworks", "train_with", {
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
        {KEEP: "    if True:\n        task.save"},
})  # fmt: skip
SHARED = [{"steps": 3, "batch": BATCH, "rate": 0.4}]
MIRRORED, REPLICAS = 2, 3  # this rank has MirroredStrategy's replicas; those before are MultiWorkerMirroredStrategy's

JAX = Reference("other_frameworks", "train_on", {
    "each device computes the whole batch: divide images and labels over the devices":
        {"jax.device_put(array, divided)": "jax.device_put(array, whole)"},
    "one device does everything: put weights and batches on all of them": {"Mesh(devices, ": "Mesh(devices[:1], "},
    "the weights are divided over the devices: each needs them whole":
        {"jax.device_put(array, whole)": "jax.device_put(array, divided)"},
    "`task.loss` is the mean over the whole batch already: the number of devices changes no step":
        {"task.lr * gradient": "task.lr / len(devices) * gradient"},
    "the last loss is logged in place of the first: log the loss from before each update":
        {"losses.append(float(loss))": "losses.append(float(task.loss(weights, images, labels)))"},
})  # fmt: skip
BATCHES = [
    {"devices": 2, "batch": 8, "steps": 3},
    {"devices": 4, "batch": 8, "steps": 3},
    {"devices": 1, "batch": 6, "steps": 2},
    {"devices": 3, "batch": 144, "steps": 4},
]

_data = cache(Batches)


class Task:
    """What a learner's function finds in each process, and what it has done with it."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.steps, self.batch, self.lr = case["steps"], case["batch"], case["rate"]
        self.network: Any = None
        self.reads: list[Any] = []  # numbers of samples, or (step, index, count)
        self.losses: list[tuple[int, float]] = []
        self.saved: list[list[torch.Tensor]] = []

    def model(self) -> torch.nn.Module:
        """For Horovod: weights and biases are different in each process."""
        with torch.random.fork_rng():
            torch.manual_seed(dist.get_rank())
            self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        return self.network

    def read(self, numbers: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Images ``[n, 64]`` and labels ``[n]`` of the samples with these numbers."""
        self.reads.append([int(number) for number in numbers])
        return torch.tensor(_data().images[self.reads[-1]]), torch.tensor(_data().labels[self.reads[-1]])

    def weights(self) -> list[Any]:
        """For TensorFlow: ``[64, 64]``, ``[64]``, ``[64, 10]``, ``[10]``, different in each process."""
        shift = numpy.float32(0.1 * (dist.get_rank() + 1))
        return [array + shift * (array.ndim == 1) for array in weights(dist.get_rank())]

    def part(self, step: int, index: int, count: int) -> tuple[Any, Any]:
        """Images ``[144 / count, 64]`` and labels of a step, for replica number ``index`` of ``count``."""
        import tensorflow as tf

        self.reads.append((int(step), int(index), int(count)))
        images, labels = Batches(int(index), int(count))[int(step)]
        return tf.constant(images), tf.constant(labels)

    def log(self, step: int, loss: Any) -> None:
        self.losses.append((int(step), float(loss)))

    def save(self, model: Any) -> None:
        """A network of torch, or a list of TensorFlow's variables."""
        arrays = [*model.state_dict().values()] if isinstance(model, torch.nn.Module) else model
        self.saved.append([torch.tensor(array.numpy()) for array in arrays])

    def seen(self, under: str = "") -> dict[str, Any]:
        return {
            f"the steps whose loss is logged{under}": [step for step, _ in self.losses],
            f"how often the checkpoint is saved{under}": len(self.saved),
            f"the weights in the checkpoint{under}": self.saved[-1:],
            f"the losses{under}": torch.tensor([loss for _, loss in self.losses]),
        }


@exercise(HOROVOD, TRAININGS, title="Horovod", difficulty=2, minutes=25, **workers.by("horovod"))
def horovod(case: dict[str, Any], train: Callable[..., None]) -> dict[str, Any]:
    """Judge ``train(task)`` in workers of horovodrun, each of which believes to be on a node of its own."""
    for name in ("RANK", "SIZE"):
        os.environ[f"HOROVOD_CROSS_{name}"] = os.environ[f"HOROVOD_{name}"]
    os.environ |= {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"}
    task = Task(case)
    train(task)
    refuse(task.network is None, "train takes its network from task.model()")
    reads: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reads, in_steps(task.reads, case["batch"]))
    return {
        "how many samples this worker reads in each step": [*map(len, reads[dist.get_rank()])],
        "what all workers together read in each step": [
            sorted(chain(*step)) for step in zip_longest(*reads, fillvalue=())
        ],
        "the final weights": [parameter.detach() for parameter in task.network.parameters()],
    } | task.seen()


@cache
def _strategy() -> Any:
    """One for all that is played in this process: TensorFlow's workers can meet only once."""
    import tensorflow as tf

    rank, ports = dist.get_rank(), [free_ports(2)]
    dist.broadcast_object_list(ports, src=0)
    if rank == MIRRORED:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
        return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports[0]]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    return tf.distribute.MultiWorkerMirroredStrategy()


@exercise(TENSORFLOW, SHARED, title="tf.distribute", difficulty=3, minutes=35, **workers.by("tensorflow"))
def tensorflow(case: dict[str, Any], train_with: Callable[..., None]) -> dict[str, Any]:
    """Judge ``train_with(strategy, task)`` in two workers, and in one process with several replicas."""
    strategy, task = _strategy(), Task(case)
    train_with(strategy, task)
    under = f" under {'Mirrored' if dist.get_rank() == MIRRORED else 'MultiWorkerMirrored'}Strategy"
    return {f"the parts of batches (step, index, count){under}": sorted({*task.reads})} | task.seen(under)


@exercise(JAX, BATCHES, title="JAX", difficulty=2, minutes=25, needs=("jax",))
def jax(case: dict[str, Any], train_on: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_on(devices, task)`` in one process, whose CPU is several devices."""
    import jax

    with contextlib.suppress(RuntimeError):  # (JAX has begun, in a case before)
        jax.config.update("jax_num_cpu_devices", 4)
    devices, shapes = jax.devices("cpu")[: case["devices"]], []

    def loss(arrays: Any, images: Any, labels: Any) -> Any:
        """Of one batch, the mean; whoever computes it, the images on each device are noted."""
        weight, bias, weight_2, bias_2 = arrays
        try:
            jax.debug.inspect_array_sharding(
                images, callback=lambda how: shapes.append(how.shard_shape(images.shape)[0])
            )
        except Exception:  # inside shard_map, where the images are those of one device
            shapes.append(images.shape[0])
        logits = jax.nn.relu(images @ weight + bias) @ weight_2 + bias_2
        own = jax.numpy.arange(10) == labels[:, None]
        return -(jax.nn.log_softmax(logits) * own).sum(1).mean()

    def batch(step: int) -> tuple[Any, Any]:
        part = slice(step * case["batch"], (step + 1) * case["batch"])
        return _data().images[part], _data().labels[part]

    task = SimpleNamespace(steps=case["steps"], lr=0.5, loss=loss, batch=batch, weights=lambda: weights(case["batch"]))
    returned = train_on(devices, task)
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    refuse(not pair or len(returned[1]) != 4, "two things are returned: the list of losses, and the four weights")
    refuse(not shapes, "the loss is the one that `task.loss` computes: call it in each step")
    losses, final = returned
    return {
        "the losses": torch.tensor([float(one) for one in losses]),
        "the final weights": [torch.tensor(numpy.asarray(one)) for one in final],
        "the images that each device has of a batch": shapes[0],
        "the devices that hold each of the weights": [len(getattr(one, "devices", set)()) for one in final],
        "the weights are whole on each of them": [getattr(one, "is_fully_replicated", False) for one in final],
    }
