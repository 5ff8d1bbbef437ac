"""The exercises of this lab: samplers, epochs that repeat themselves, loaders of different length, workers.

samplers.py        training: a sampler that deals samples out
evaluations.py     evaluation: a sampler without duplicates, and the accuracy of all; dealing.py is for both samplers
every_epochs.py    every_epoch, and resuming.py resumed, augmenting.py augmented: three loops; epochs.py is for all
uneven_loaders.py  uneven: ranks with different numbers of batches, and uneven_training.py what each of them does
worker_numbers.py  workers: how many a loader needs
sources.py         what a stream reads from, and who has read it
streams.py         stream: an iterable data set, dealt out to ranks and their workers
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.feeding_the_ranks import (
    augmenting,
    evaluations,
    every_epochs,
    resuming,
    samplers,
    streams,
    uneven_loaders,
    worker_numbers,
)
from checks.framework import exercise
from checks.points import passed


@exercise(title="A sampler for training", difficulty=2, minutes=25)
def training(TrainingSampler: Any) -> dict[str, Any]:
    """Judge the class ``TrainingSampler(dataset, world_size, rank, seed, drop_last)`` with ``set_epoch``."""
    return judge(samplers.CONTRACT, TrainingSampler)


@exercise(
    title="An evaluation without duplicates",
    difficulty=1,
    minutes=15,
    parts={"EvaluationSampler": 1, "accuracy": 1},
)
def evaluation(EvaluationSampler: Any, accuracy: Any) -> dict[str, Any]:
    """Judge ``EvaluationSampler(dataset, world_size, rank)`` and ``accuracy(correct, seen)``, called on all ranks."""
    figures = judge(evaluations.SAMPLER, EvaluationSampler)
    passed("EvaluationSampler")
    return figures | judge(evaluations.ACCURACY, accuracy)


@exercise(title="Every epoch alike", difficulty=1, minutes=10)
def every_epoch(train_every_epoch: Any) -> dict[str, Any]:
    """Judge ``train_every_epoch(dataset, epochs, step)`` on real ranks with a real DataLoader."""
    return judge(every_epochs.CONTRACT, train_every_epoch)


@exercise(title="One epoch late", difficulty=2, minutes=10)
def resumed(train_resumed: Any) -> dict[str, Any]:
    """Judge ``train_resumed(dataset, first, epochs, step, evaluate)``, from epoch 0 on and from a later one."""
    return judge(resuming.CONTRACT, train_resumed)


@exercise(title="Workers that do not hear", difficulty=2, minutes=15)
def augmented(train_augmented: Any) -> dict[str, Any]:
    """Judge ``train_augmented(dataset, epochs, step)``, whose data set must know the epoch in its workers."""
    return judge(augmenting.CONTRACT, train_augmented)


@exercise(title="Loaders of different length", difficulty=3, minutes=30)
def uneven(train_uneven: Any) -> dict[str, Any]:
    """Judge ``train_uneven(model, optimizer, batches)`` on ranks that have different numbers of batches."""
    return judge(uneven_loaders.CONTRACT, train_uneven)


@exercise(title="Choose num_workers", difficulty=2, minutes=20)
def workers(choose_workers: Any) -> dict[str, Any]:
    """Judge ``choose_workers(measure, cores, ranks, worker_bytes, free_bytes)`` on simulated machines."""
    return judge(worker_numbers.CONTRACT, choose_workers)


@exercise(title="A stream for ranks and workers", difficulty=2, minutes=20)
def stream(RankStream: Any) -> dict[str, Any]:
    """Judge the class ``RankStream(source, world_size, rank, drop_last)``, an IterableDataset, in real loaders."""
    return judge(streams.CONTRACT, RankStream)
