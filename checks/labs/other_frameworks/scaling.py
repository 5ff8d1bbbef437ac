"""Check of ``train``, in workers of horovodrun: each brings a batch of its own, so the whole batch grows with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, refuse
from checks.engine.plain import in_steps
from utils.training.same_training import Batches

BROADCAST = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
WRAP, NAMED = "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n", "named_parameters())"
LOG, SAVE = "        if rank == 0:\n            task.log", "    if rank == 0:\n        task.save"
AT_THE_END = "    for one in model.parameters():\n        one.data.copy_(hvd.allreduce(one.data))\n"
OFFICIAL = Reference("other_frameworks", "train", {
    "the workers start with different weights: give them all those of worker 0 before the first step": {BROADCAST: ""},
    "the biases of the workers are different at the start: give them those of worker 0, too":
        {"model.state_dict()": "{name: one for name, one in model.named_parameters() if one.dim() > 1}"},
    "the network of task.model() is as it was: train it itself, and not a copy":
        {BROADCAST: BROADCAST + "    import copy\n    model = copy.deepcopy(model)\n"},
    "no gradient is ever averaged, and each worker trains for itself: wrap the optimizer with Horovod's": {WRAP: ""},
    "weights are averaged once, at the end: average every gradient in every step": {WRAP: "", SAVE: AT_THE_END + SAVE},
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
    "the loss that is logged is the sum over the workers, not the mean":
        {"loss.detach())": "loss.detach(), op=hvd.Sum)"},
    "every worker logs: only worker 0 does": {LOG: "        if True:\n            task.log"},
    "every worker saves, and all would write the same file": {SAVE: "    if True:\n        task.save"},
    "the checkpoint is saved in each step: once, at the end, is asked for":
        {SAVE: "        if rank == 0:\n            task.save"},
    "the local rank is counted on each node, and all these workers have 0": {"hvd.rank()": "hvd.local_rank()"},
})  # fmt: skip
CASES = [{"steps": 7, "batch": 32, "rate": 0.1}, {"steps": 3, "batch": 16, "rate": 0.25}]


@cache
def _data() -> Batches:
    return Batches()


class Task:
    """What a learner's function finds in each worker, and what it has done with it."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.steps, self.batch, self.lr = case["steps"], case["batch"], case["rate"]
        self.network: torch.nn.Module | None = None
        self.reads: list[list[int]] = []
        self.losses: list[tuple[int, float]] = []
        self.saved: list[list[torch.Tensor]] = []

    def model(self) -> torch.nn.Module:
        """A network whose weights and biases are different in each process."""
        with torch.random.fork_rng():
            torch.manual_seed(dist.get_rank())
            self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        return self.network

    def read(self, numbers: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Images ``[n, 64]`` and labels ``[n]`` of the samples with these numbers."""
        self.reads.append([int(number) for number in numbers])
        return torch.tensor(_data().images[self.reads[-1]]), torch.tensor(_data().labels[self.reads[-1]])

    def log(self, step: int, loss: Any) -> None:
        self.losses.append((int(step), float(loss)))

    def save(self, model: torch.nn.Module) -> None:
        self.saved.append(_weights(model))


def _weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def play(case: dict[str, Any], train: Callable[..., None]) -> dict[str, Any]:
    """In a worker that believes to be on a node of its own: local numbers are no numbers of workers."""
    os.environ |= {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": str(dist.get_rank()),
                   "HOROVOD_CROSS_SIZE": str(dist.get_world_size())}  # fmt: skip
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
        "the steps whose loss is logged": [step for step, _ in task.losses],
        "the final weights": _weights(task.network),
        "the losses": torch.tensor([loss for _, loss in task.losses]),
        "how often the checkpoint is saved": len(task.saved),
        "the weights in the checkpoint": task.saved[-1:],
    }
