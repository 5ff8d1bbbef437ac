"""Checks of four loops: which samples come to the steps of the ranks in each epoch, and steps without any."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import Dataset

from checks.engine import Reference, exercise, leaves, refuse, watched
from checks.engine.plain import from_array
from checks.engine.watching import explained

TELL, STEP = "        sampler.set_epoch(epoch)\n", "            step(epoch, batch)"
ALIKE = "every epoch has the same order: the sampler that deals samples out has to hear of each epoch before it draws"
EVERY_EPOCH = Reference("feeding_the_ranks", "train_every_epoch", {
    "the samples are not shuffled at all": {"Sampler(dataset)": "Sampler(dataset, shuffle=False)"},
    ALIKE: {TELL: ""},
    "the orders are one epoch late: the order is drawn when an iterator is made, and set_epoch must come before":
        {TELL: "", STEP: STEP + "\n" + TELL},
    "a rank keeps the samples that it had, and only shuffles them: shuffle all of them first, deal out then":
        {"DistributedSampler(dataset)\n": "torch.utils.data.SubsetRandomSampler(range(dist.get_rank(), len(dataset), "
         "dist.get_world_size()))\n    sampler.set_epoch = int\n"},
})  # fmt: skip
FIRST, NEXT = "    sampler.set_epoch(first)\n", "        sampler.set_epoch(epoch + 1)\n"
LOOP = "    for epoch in range(first, epochs):\n"
RESUMED = Reference("feeding_the_ranks", "train_resumed", {
    ALIKE: {FIRST: "", NEXT: ""},
    "the orders are one epoch late: set_epoch before iter(loader) gets the epoch that is over": {NEXT: TELL},
    "the orders are one epoch late: iter(loader) draws the order, and set_epoch comes too late, also after resuming":
        {FIRST: "", NEXT: "", LOOP: LOOP + TELL},
    "the first iterator after resuming has the order of epoch 0: set_epoch comes before it, too": {FIRST: ""},
})  # fmt: skip
AUGMENTED = Reference("feeding_the_ranks", "train_augmented", {
    ALIKE: {TELL: ""},
    "the data set never hears of an epoch: the noise is always the same": {TELL.replace("sampler", "dataset"): ""},
    "the workers keep the data set of the first epoch: they hold a copy that was made when they started, and set_epoch "
    "changes the original":
        {"num_workers=1)": "num_workers=1, persistent_workers=True)"},
})  # fmt: skip
COUNT, WEIGHT = "        count = torch.tensor(len(y))\n", " * (len(y) / count)"
CLEAR, STEP = "        optimizer.zero_grad(set_to_none=False)\n", "        optimizer.step()\n        steps += 1"
DATA, ENDS = "        if len(y):\n", "        if count == 0:\n            return steps\n"
UNEVEN = Reference("feeding_the_ranks", "train_uneven", {
    "the ranks' means are added up and divided by the world size, so a rank without data pulls the step towards zero":
        {"len(y) / count": "1 / dist.get_world_size()"},
    "each rank's mean weighs the same, so a sample in a small batch weighs more than one in a large one: weigh samples":
        {COUNT: "        count = torch.tensor(int(len(y) > 0))\n", "len(y) / count": "1 / count"},
    "the ranks' means are added up: nobody divides by how many there are, or weighs them": {WEIGHT: ""},
    "the gradients of the last step are still there: clear them before backward(), also without data": {CLEAR: ""},
    "a rank without data still hands in the gradient of the last step: zeros are what it has":
        {CLEAR: DATA + "    " + CLEAR},
    "a rank without data takes the step too: its weights must stay those of the others": {STEP: DATA + "    " + STEP},
    "there is a step without any data, and the optimizer's momentum moves the weights on":
        {ENDS: "", "(len(y) / count)": "(len(y) / max(count, 1))",
         STEP: STEP + "\n        if count == 0:\n            return steps - 1"},
})  # fmt: skip
_SIZES = [[4], [1], []], [[4, 3, 2], [1], [2, 2]], [[], [3, 5], [2, 1, 1]], [[], [], []], [[200, 1], [120], [9]]
BATCHES = [{"samples_of_the_batches": sizes} for sizes in _SIZES]
CASES = [{"samples": 23, "epochs": 4}, {"samples": 26, "epochs": 3}]
RESUMING = [case | {"first": 2} for case in CASES]
BATCH, EPOCH = 4, 1_000_000  # samples; by how much the numbers of a sample in two epochs differ
PATIENCE = 5.0  # seconds for workers to read their first sample, however busy the machine is

Step = Callable[[int, Any], None]
Orders = dict[int, list[list[int]]]  # of each epoch the indices that each rank has seen, rank 0 first


class Samples(Dataset):  # type: ignore[type-arg]
    """A sample is one number: the epoch in which the data set believes, the index, and whether a worker reads it."""

    def __init__(self, length: int) -> None:
        self.epoch, self._process = -1, os.getpid()
        self.read_by_workers = torch.zeros(length, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.read_by_workers)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        index, by_worker = range(len(self))[index], int(os.getpid() != self._process)
        self.read_by_workers[index] += by_worker
        return EPOCH * (int(self.epoch) + 2) + 2 * index + by_worker


def _run(samples: int, loop: Callable[[Samples, Step], Any]) -> tuple[Orders, dict[int, list[int]]]:
    """Run a loop on this rank: the orders of all ranks, and for each epoch the samples as the data set gave them."""
    if "fork" in multiprocessing.get_all_start_methods():  # a rank's main module cannot be imported by a spawned worker
        multiprocessing.set_start_method("fork", force=True)
    batches: list[tuple[int, list[int]]] = []
    seeds = torch.initial_seed(), random.getstate()
    loop(Samples(samples), lambda epoch, batch: batches.append((epoch, numpy.ravel(batch).tolist())))
    fault = "your loop seeds a global generator, and the model draws from it too: give the sampler one of its own"
    refuse((torch.initial_seed(), random.getstate()) != seeds, fault)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, batches)
    orders: Orders = {}
    given: dict[int, list[int]] = {}
    for rank, batches in enumerate(everyone):
        for epoch, batch in batches:
            share = orders.setdefault(epoch, [[] for _ in everyone])[rank]
            fault = f"these are not batches of {BATCH}, the last one smaller"
            refuse(len(batch) > BATCH or len(share) % BATCH, fault, measured=f"one of {len(batch)}")
            refuse(min(batch, default=EPOCH) < EPOCH, "what comes to step is no sample of the data set")
            share += [number % EPOCH // 2 for number in batch]
            given.setdefault(epoch, []).extend(batch)
    refuse(not orders, "nothing comes to step")
    for epoch, shares in orders.items():
        sizes, missing = [len(share) for share in shares], samples - len(set().union(*shares))
        told = f"{missing} of {samples} samples are missing in epoch {epoch}, and the ranks see {sizes}"
        whole, alike = sizes == [samples] * len(shares) != [samples], all(share == shares[0] for share in shares)
        refuse(whole, "every rank trains on all samples: the loader needs a sampler that deals them out", measured=told)
        refuse(missing and alike, "all ranks see the same samples: the sampler needs to know its rank", measured=told)
        fault = "a part of the samples is left out: does drop_last drop them, or is the last batch skipped?"
        refuse(missing and sum(sizes) < samples, fault, measured=told)
        fault = "samples are missing, and others come more than once: all ranks shuffle with the same seed and epoch"
        refuse(missing, fault, measured=told)
    return orders, given


def _named(orders: Orders, whole: Orders, how: str = "") -> dict[str, Any]:
    """For each epoch of a run, which epoch of the whole one has had its order first."""
    first = {epoch: next((e for e in whole if whole[e] == order), "none") for epoch, order in orders.items()}
    return {f"which epoch's order epoch {epoch}{how} has": other for epoch, other in first.items()}


def _compared(orders: Orders) -> dict[str, Any]:
    """What there is to compare of the orders of one run."""
    first, *later = orders.values()
    moved = [any(set(share) - set(before) for share, before in zip(order, first, strict=True)) for order in later]
    return {
        "the epochs that are trained": list(orders),
        "whether the samples are shuffled": first != [[*sorted(share[:-1]), share[-1]] for share in first],
        **_named(orders, orders),
        "whether the ranks get other samples than in the first epoch": all(moved) or len(first) == 1,
    }


@exercise(EVERY_EPOCH, CASES, title="Every epoch alike", difficulty=1, minutes=10, ranks=(2, 3, 1))
def every_epoch(case: dict[str, Any], train_every_epoch: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_every_epoch(dataset, epochs, step)`` on real ranks with a real DataLoader."""
    orders, _ = _run(case["samples"], lambda data, step: train_every_epoch(data, case["epochs"], step))
    return _compared(orders)


@exercise(RESUMED, RESUMING, title="One epoch late", difficulty=2, minutes=10, ranks=(2,))
def resumed(case: dict[str, Any], train_resumed: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_resumed(dataset, first, epochs, step, evaluate)``, from epoch 0 on and from a later one."""
    whole, late = (_resumed(case, train_resumed, first) for first in (0, case["first"]))
    return _compared(whole) | _named(late, whole, f", resumed with epoch {case['first']},")


def _resumed(case: dict[str, Any], train_resumed: Callable[..., Any], first: int) -> Orders:
    """The orders of a run; refused, if no worker reads for the next epoch while one is evaluated."""
    events: list[str] = []
    idle: list[int] = []

    def loop(data: Samples, step: Step) -> None:
        done = 0

        def counted(epoch: int, batch: Any) -> None:
            nonlocal done
            done += len(batch)
            step(epoch, batch)
            if events[-1:] != [f"steps of {epoch}"]:
                events.append(f"steps of {epoch}")

        def evaluate(epoch: int) -> None:
            events.append(f"evaluate({epoch})")
            until = time.monotonic() + PATIENCE * (not idle and epoch + 1 < case["epochs"])
            while data.read_by_workers.sum() <= done and time.monotonic() < until:
                time.sleep(0.002)
            at_work = data.read_by_workers.sum() > done and multiprocessing.active_children()
            idle.extend([epoch] * (not at_work and epoch + 1 < case["epochs"]))

        train_resumed(data, first, case["epochs"], counted, evaluate)

    orders, _ = _run(case["samples"], loop)
    wanted = [what.format(epoch) for epoch in range(first, case["epochs"]) for what in ("steps of {}", "evaluate({})")]
    fault = "evaluate(epoch) is called once after each epoch: after its last step, and before the next one's first"
    refuse(events != wanted, fault, measured=", ".join(events), expected=", ".join(wanted))
    fault = f"no worker reads for the next epoch while epoch {idle and idle[0]} is evaluated: make its iterator before"
    refuse(idle, fault)
    return orders


@exercise(AUGMENTED, CASES, title="Workers that do not hear", difficulty=2, minutes=15, ranks=(2,))
def augmented(case: dict[str, Any], train_augmented: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_augmented(dataset, epochs, step)``, whose data set must know the epoch in its workers."""
    orders, given = _run(case["samples"], lambda data, step: train_augmented(data, case["epochs"], step))
    fault = "samples are read by the training process itself, so the GPU waits for each: keep num_workers=1 or more"
    refuse(any(number % 2 == 0 for numbers in given.values() for number in numbers), fault)
    believed = {epoch: {number // EPOCH - 2 for number in numbers} for epoch, numbers in given.items()}
    label = "which epochs the data set believes in, in epoch {}"
    return _compared(orders) | {label.format(epoch): sorted(told) for epoch, told in believed.items()}


@exercise(UNEVEN, BATCHES, title="Loaders of different length", difficulty=3, minutes=30, ranks=(3, 2, 1))
def uneven(case: dict[str, Any], train_uneven: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``train_uneven(model, optimizer, batches)`` on ranks that have different numbers of batches."""
    rank, every = dist.get_rank(), case["samples_of_the_batches"][: dist.get_world_size()]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4, bias=False), nn.Dropout(0.5).eval())
    parameters, momentum = list(model.parameters()), [torch.zeros_like(one) for one in model.parameters()]
    gradients: list[torch.Tensor] = []  # at each step
    weights: list[torch.Tensor] = []  # after each step

    def step() -> None:
        fault = f"in step {len(weights)} parameters have no gradient: hand in zeros where a rank has no data"
        refuse(any(parameter.grad is None for parameter in parameters), fault)
        gradients.append(parameters_to_vector(parameter.grad for parameter in parameters))
        for parameter, moving in zip(parameters, momentum, strict=True):
            parameter.data -= 0.5 * moving.mul_(0.9).add_(parameter.grad)
        weights.append(parameters_to_vector(parameters).detach())

    groups = [{"params": parameters, "lr": 0.5}]  # (SGD of torch's own would import a compiler on each rank)
    optimizer = SimpleNamespace(step=step, zero_grad=model.zero_grad, param_groups=groups)
    torch.manual_seed(rank)
    batches = [(torch.randn(size, 2) + rank, torch.randint(4, (size,))) for size in every[rank]]
    drawn: list[int] = []  # steps done when each batch was asked for

    def stream() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in batches:
            drawn.append(len(weights))
            yield batch

    modes = {"the modes of the model": nn.ModuleList([model[1], model[3]])}
    fault = "A rank without data still takes part, with zeros, while anybody has data"
    with leaves(batches=batches, **modes), explained(fault), watched() as wire:
        returned = from_array(train_uneven(model, optimizer, stream()))
    ahead = max((place - done for place, done in enumerate(drawn)), default=0)
    fault = "train_uneven reads its batches before it takes its steps, and a data set does not fit into memory"
    refuse(ahead > 1, fault, measured=f"{ahead} batches ahead", expected="at most 1")
    turns = max(len(weights), *map(len, every))
    most = turns * (len(parameters) + 1) + 1
    fault = "more collectives than needed: beside the gradients one a step, and one at the end, tell who has data"
    refuse(len(wire.calls) > most, fault, measured=len(wire.calls), expected=f"at most {most}")
    most = (turns + 1) * (sum(parameter.nbytes for parameter in parameters) + 16)
    fault = "more bytes than needed: the gradients, and two numbers a step"
    refuse(wire.sent() > most, fault, measured=wire.sent(), expected=f"at most {most}")
    return {
        "how many steps the optimizer takes, until no rank has data": len(weights),
        "the number of steps that is returned": returned,
        "the gradient of each step": gradients,
        "the weights after each step": weights,
    }
