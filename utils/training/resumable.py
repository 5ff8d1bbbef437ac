"""What an exact resume needs beside the state of model and optimizer; ``utils.training.checkpoints`` saves it.

- ``ResumableSampler``: a ``DistributedSampler`` that can go on in the middle of an epoch.
- ``endless_batches``: batches from it, epoch after epoch, without touching the random numbers of the model.
- ``random_state``, ``set_random_state``: all generators of a rank.
- ``settle_buckets``: so that a resumed ``DistributedDataParallel`` adds gradients up in the same order as before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class ResumableSampler(DistributedSampler):
    """A ``DistributedSampler`` that knows how much of the epoch is done, and goes on there.

    Call ``advance`` after each step. What counts is what the model has been trained on, not what the DataLoader has
    taken: its workers are several batches ahead.

    The position is saved as a number of samples of all ranks, so another number of ranks can go on from it (to within
    fewer samples than there are ranks).
    """

    done = 0
    """Samples of this epoch that this rank has trained on."""

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__())[self.done :])

    def __len__(self) -> int:
        return self.num_samples - self.done

    def advance(self, samples: int) -> None:
        """This rank's model has been trained on so many samples more."""
        self.done += samples

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. The one that was resumed goes on where it was."""
        if epoch != self.epoch:
            self.done = 0
        super().set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "samples": self.done * self.num_replicas}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        super().set_epoch(state["epoch"])
        self.done = state["samples"] // self.num_replicas


def endless_batches(sampler: ResumableSampler, batch_size: int) -> Iterator[Any]:
    """Batches of the sampler's dataset, from where it is, one epoch after the other.

    A DataLoader draws a seed for its workers whenever an epoch begins, also without workers. It takes torch's
    generator, the one of dropout, unless it is given another. A training that resumes in the middle of an epoch begins
    that epoch a second time: without a generator of its own it would draw once more than one that never stopped.
    """
    loader = DataLoader(sampler.dataset, batch_size, sampler=sampler, generator=torch.Generator())
    while True:
        yield from loader
        sampler.set_epoch(sampler.epoch + 1)


def random_state() -> dict[str, Any]:
    """The states of all of this rank's generators, as tensors and plain values."""
    state: Any = numpy.random.get_state()  # a tuple, if nobody asks for another form
    kind, keys, *rest = state
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(numpy.int64)), *rest),
        "torch": torch.get_rng_state(),
        "gpu": gpu,
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put all of this rank's generators back to what ``random_state`` gave."""
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    numpy.random.set_state((kind, keys.numpy().astype(numpy.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["gpu"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["gpu"])


def settle_buckets(model: nn.parallel.DistributedDataParallel, *inputs: Any) -> None:
    """Let DDP lay out its buckets as it does for good, before the first step. All ranks call it; then ``resume``.

    DDP begins with buckets in one order, and after the first backward pass lays them out anew, in the order in which
    gradients were ready. A ring all-reduce adds up the ranks in an order that depends on where in the bucket a number
    lies, and sums of three or more floats depend on their order. So the first step after a resume would round
    otherwise than the same step of a training that never stopped.

    Parameters, buffers and gradients stay as they are; random numbers may be drawn.

    Args:
        inputs: of the model, of any batch.
    """
    was_training = model.training
    model.eval()  # running averages of batch norm must not move
    model(*inputs).sum().backward()
    model.zero_grad()
    model.train(was_training)
