"""Check of ``train_on``: a batch divided over several of JAX's devices, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from checks.engine import Reference, refuse
from utils.training.same_training import Batches, weights

OFFICIAL = Reference("other_frameworks", "train_on", {
    "each device computes the whole batch: divide images and labels over the devices":
        {"jax.device_put(array, divided)": "jax.device_put(array, whole)"},
    "one device does everything: put weights and batches on all of them": {"Mesh(devices, ": "Mesh(devices[:1], "},
    "the weights are divided over the devices: each needs them whole":
        {"jax.device_put(array, whole)": "jax.device_put(array, divided)"},
    "`task.loss` is the mean over the whole batch already: the number of devices changes no step":
        {"task.lr * gradient": "task.lr / len(devices) * gradient"},
    "the weights are as at the start: each step gives new ones, for arrays of JAX do not change":
        {"loss, weights = train_step": "loss, _ = train_step"},
    "the last loss is logged in place of the first: log the loss from before each update":
        {"losses.append(float(loss))": "losses.append(float(task.loss(weights, images, labels)))"},
})  # fmt: skip
CASES = [
    {"devices": 2, "batch": 8, "steps": 3},
    {"devices": 4, "batch": 8, "steps": 3},
    {"devices": 1, "batch": 6, "steps": 2},
    {"devices": 3, "batch": 144, "steps": 4},
]


def play(case: dict[str, Any], train_on: Callable[..., Any]) -> dict[str, Any]:
    """In one process, whose CPU is as many devices."""
    import jax

    with contextlib.suppress(RuntimeError):  # (JAX has begun, in a case before)
        jax.config.update("jax_num_cpu_devices", 4)
    devices, data, shapes = jax.devices("cpu")[: case["devices"]], Batches(), []

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
        return data.images[part], data.labels[part]

    task = SimpleNamespace(steps=case["steps"], lr=0.5, loss=loss, batch=batch, weights=lambda: weights(case["batch"]))
    returned = train_on(devices, task)
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    refuse(not pair or len(returned[1]) != 4, "two things are returned: the list of losses, and the four weights")
    losses, final = returned
    refuse(not shapes, "the loss is the one that `task.loss` computes: call it in each step")
    return {
        "the losses": torch.tensor([float(one) for one in losses]),
        "the final weights": [torch.tensor(numpy.asarray(one)) for one in final],
        "the images that each device has of a batch": shapes[0],
        "the devices that hold each of the weights": [len(getattr(one, "devices", set)()) for one in final],
        "the weights are whole on each of them": [getattr(one, "is_fully_replicated", False) for one in final],
    }
