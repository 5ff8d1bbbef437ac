"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

samplers.py        training: a sampler that deals samples out
evaluations.py     evaluation: a sampler without duplicates, and the accuracy of all; dealing.py is for both samplers
every_epochs.py    every_epoch, and resuming.py resumed, augmenting.py augmented: three loops; epochs.py is for all
uneven_loaders.py  uneven: ranks with different numbers of batches
worker_numbers.py  workers: how many a loader needs, on the machines of simulated_loader.py
streams.py         stream: an iterable data set, dealt out to ranks and their workers
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.feeding_the_ranks import (
    augmenting,
    evaluations,
    every_epochs,
    resuming,
    samplers,
    streams,
    uneven_loaders,
    worker_numbers,
)
from checks.points import passed

PARTS = {"EvaluationSampler": 1, "accuracy": 1}


@exercise(title="A sampler for training", difficulty=2, minutes=25, official=samplers.OFFICIAL)
def training(TrainingSampler: Any) -> dict[str, Any]:
    """Judge the class ``TrainingSampler(dataset, world_size, rank, seed, drop_last)`` with ``set_epoch``."""
    return judge(samplers.OFFICIAL, samplers.play, samplers.draw, TrainingSampler)


@exercise(
    title="An evaluation without duplicates", difficulty=1, minutes=15, parts=PARTS, official=evaluations.OFFICIAL
)
def evaluation(EvaluationSampler: Any, accuracy: Any) -> dict[str, Any]:
    """Judge ``EvaluationSampler(dataset, world_size, rank)`` and ``accuracy(correct, seen)``, called on all ranks."""
    judge(evaluations.SAMPLER, evaluations.play_sampler, evaluations.draw, EvaluationSampler)
    passed("EvaluationSampler")
    return judge(evaluations.ACCURACY, evaluations.play_accuracy, evaluations.CASES, accuracy, ranks=(3, 2, 1))


@exercise(title="Every epoch alike", difficulty=1, minutes=10, official=every_epochs.OFFICIAL)
def every_epoch(train_every_epoch: Any) -> dict[str, Any]:
    """Judge ``train_every_epoch(dataset, epochs, step)`` on real ranks with a real DataLoader."""
    return judge(every_epochs.OFFICIAL, every_epochs.play, every_epochs.CASES, train_every_epoch, ranks=(2, 3, 1))


@exercise(title="One epoch late", difficulty=2, minutes=10, official=resuming.OFFICIAL)
def resumed(train_resumed: Any) -> dict[str, Any]:
    """Judge ``train_resumed(dataset, first, epochs, step, evaluate)``, from epoch 0 on and from a later one."""
    return judge(resuming.OFFICIAL, resuming.play, resuming.CASES, train_resumed, ranks=(2,))


@exercise(title="Workers that do not hear", difficulty=2, minutes=15, official=augmenting.OFFICIAL)
def augmented(train_augmented: Any) -> dict[str, Any]:
    """Judge ``train_augmented(dataset, epochs, step)``, whose data set must know the epoch in its workers."""
    return judge(augmenting.OFFICIAL, augmenting.play, augmenting.CASES, train_augmented, ranks=(2,))


@exercise(title="Loaders of different length", difficulty=3, minutes=30, official=uneven_loaders.OFFICIAL)
def uneven(train_uneven: Any) -> dict[str, Any]:
    """Judge ``train_uneven(model, optimizer, batches)`` on ranks that have different numbers of batches."""
    return judge(uneven_loaders.OFFICIAL, uneven_loaders.play, uneven_loaders.CASES, train_uneven, ranks=(3, 2, 1))


@exercise(title="Choose num_workers", difficulty=2, minutes=20, official=worker_numbers.OFFICIAL)
def workers(choose_workers: Any) -> dict[str, Any]:
    """Judge ``choose_workers(measure, cores, ranks, worker_bytes, free_bytes)`` on simulated machines."""
    return judge(worker_numbers.OFFICIAL, worker_numbers.play, worker_numbers.draw, choose_workers)


@exercise(title="A stream for ranks and workers", difficulty=2, minutes=20, official=streams.OFFICIAL)
def stream(RankStream: Any) -> dict[str, Any]:
    """Judge the class ``RankStream(source, world_size, rank, drop_last)``, an IterableDataset, in real loaders."""
    return judge(streams.OFFICIAL, streams.play, streams.draw, RankStream)
