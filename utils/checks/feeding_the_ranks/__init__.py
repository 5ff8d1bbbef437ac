"""The exercises of this lab: samplers, epochs that repeat themselves, loaders of different length, workers."""

from __future__ import annotations

import tempfile
from typing import Any

from utils.checks import Wrong, exercise, passed, run
from utils.checks.feeding_the_ranks import epochs, evaluations, samplers, uneven_loaders, worker_numbers
from utils.checks.feeding_the_ranks.samplers import Deal
from utils.checks.feeding_the_ranks.uneven_loaders import Uneven
from utils.training.simulated_loader import MACHINES

SECONDS = 30  # for each launch; a dead-lock ends sooner
LOADER_SECONDS = 60  # for ranks that start workers


# --- 1 and 2: samplers -----------------------------------------------------------------------------------------

WORLDS = range(1, 6)


def _lengths(world_size: int) -> list[int]:
    """Longer and shorter than the world size, divided evenly or not, some long enough to tell orders apart."""
    return list(dict.fromkeys((101, 60, 4 * world_size + 1, 5 * world_size - 1, 4, 2, 1)))


TRAINING = [Deal(length, n, drop) for n in WORLDS for length in _lengths(n) for drop in (False, True)]
EVALUATION = [Deal(length, n) for n in WORLDS for length in _lengths(n)]


@exercise(title="A sampler for training", difficulty=2, minutes=25)
def training(TrainingSampler: Any) -> dict[str, Any]:
    """Judge the class ``TrainingSampler(dataset, world_size, rank, seed, drop_last)`` with ``set_epoch``."""
    for deal, facts in zip(TRAINING, run(samplers.training, TrainingSampler, TRAINING), strict=True):
        samplers.judge_training(deal, facts)
    return {
        "world sizes": f"{WORLDS[0]} to {WORLDS[-1]}",
        "epochs dealt out": len(TRAINING) * len(samplers.EPOCHS),
        "a rank of 4 has, of 101 samples": f"{Deal(101, 4).share} ({Deal(101, 4, True).share} with drop_last)",
    }


COUNTS = {
    3: [((8, 10), (1, 10), (3, 4)), ((2, 2), (0, 0), (1, 3)), ((5, 7), (5, 7), (5, 7))],
    1: [((3, 7),)],
}
COUNT_BYTES = 16  # two numbers


@exercise(
    title="An evaluation without duplicates",
    difficulty=1,
    minutes=15,
    parts={"EvaluationSampler": 1, "accuracy": 1},
)
def evaluation(EvaluationSampler: Any, accuracy: Any) -> dict[str, Any]:
    """Judge ``EvaluationSampler(dataset, world_size, rank)`` and ``accuracy(correct, seen)``, called on all ranks."""
    for deal, facts in zip(EVALUATION, run(evaluations.evaluation, EvaluationSampler, EVALUATION), strict=True):
        evaluations.judge_evaluation(deal, facts)
    passed("EvaluationSampler")
    for ranks, cases in COUNTS.items():
        per_rank = run(evaluations.accuracies, accuracy, cases, ranks=ranks, timeout=SECONDS)
        for case, *facts in zip(cases, *per_rank, strict=True):
            evaluations.judge_accuracy(case, facts, COUNT_BYTES)
    return {
        "data sets dealt out": len(EVALUATION),
        "samples evaluated twice": 0,
        "shares differ by": "at most 1",
        "accuracy": "1 collective",
    }


# --- 3 to 5: epoch bugs ----------------------------------------------------------------------------------------


def _orders(count: int) -> dict[str, Any]:
    return {"ranks": epochs.RANKS, "epochs": count, "different orders": count}


@exercise(title="Every epoch alike", difficulty=1, minutes=10)
def every_epoch(train_every_epoch: Any) -> dict[str, Any]:
    """Judge ``train_every_epoch(dataset, epochs, step)`` on real ranks with a real DataLoader."""
    seen = run(epochs.every_epoch, train_every_epoch, ranks=epochs.RANKS, timeout=LOADER_SECONDS)
    epochs.judge_epochs(seen)
    return _orders(epochs.EPOCHS)


@exercise(title="One epoch late", difficulty=2, minutes=10)
def resumed(train_resumed: Any) -> dict[str, Any]:
    """Judge ``train_resumed(dataset, first, epochs, step, evaluate)``, from epoch 0 on and from a later one."""
    seen = run(epochs.resumed, train_resumed, ranks=epochs.RANKS, timeout=LOADER_SECONDS)
    epochs.judge_resumed(seen)
    return _orders(epochs.EPOCHS) | {
        f"resumed with epoch {epochs.FIRST}": "as if never stopped",
        "evaluations with workers up": f"{epochs.EPOCHS - 1} of {epochs.EPOCHS - 1}",
    }


@exercise(title="Workers that do not hear", difficulty=2, minutes=15)
def augmented(train_augmented: Any) -> dict[str, Any]:
    """Judge ``train_augmented(dataset, epochs, step)``, whose data set must know the epoch in its workers."""
    found = run(epochs.augmented, train_augmented, ranks=epochs.RANKS, timeout=LOADER_SECONDS)
    epochs.judge_augmented(found)
    return _orders(epochs.EPOCHS) | {"samples read in workers": "all, each with its own epoch"}


# --- 6: uneven loaders -----------------------------------------------------------------------------------------

UNEVEN = {
    3: [
        Uneven(((4, 3, 2), (1,), (2, 2))),
        Uneven(((), (3, 5), (2,))),
        Uneven(((2,), (2,), (2,))),
        Uneven(((), (), ())),
        Uneven(((1, 1), (2, 6), (3, 1, 1, 2))),
    ],
    1: [Uneven(((3, 2),))],
}
SHOWN = UNEVEN[3][0]  # what the figures are about


@exercise(title="Loaders of different length", difficulty=3, minutes=30)
def uneven(train_uneven: Any) -> dict[str, Any]:
    """Judge ``train_uneven(model, optimizer, batches)`` on ranks that have different numbers of batches."""
    talk = []
    for ranks, cases in UNEVEN.items():
        with tempfile.TemporaryDirectory(prefix="check-") as notes:
            try:
                found = run(uneven_loaders.uneven, train_uneven, cases, notes, ranks=ranks, timeout=SECONDS)
            except Wrong as wrong:
                raise _told(wrong, uneven_loaders.what_they_waited_for(notes, cases)) from None
        for case, *per_rank in zip(cases, *found, strict=True):
            uneven_loaders.judge_uneven(case, per_rank)
            if case == SHOWN:
                talk = [len(facts["calls"]) for facts in per_rank]
    return {
        "batches of the ranks": ", ".join(str(len(sizes)) for sizes in SHOWN.sizes),
        "steps": f"{SHOWN.steps} on each",
        "collectives": f"{max(talk)} (at most {uneven_loaders.most_talk(SHOWN)[0]})",
        "weights": "those of one process",
    }


def _told(wrong: Wrong, notes: str) -> Wrong:
    """The same verdict; where ranks waited for each other, or broke off, it says for what."""
    if "NoneType" in wrong.sentence and "all_reduce" in wrong.sentence:
        return Wrong(f"{wrong.sentence.rstrip('.')}. A rank that never had data has no gradient yet: make zeros.")
    waited = any(word in wrong.sentence for word in ("not finished", "RuntimeError", "ended its process"))
    return Wrong(f"{notes}.", details=wrong.details) if notes and waited else wrong


# --- 7: workers ------------------------------------------------------------------------------------------------


@exercise(title="Choose num_workers", difficulty=2, minutes=20)
def workers(choose_workers: Any) -> dict[str, Any]:
    """Judge ``choose_workers(measure, cores, ranks, worker_bytes, free_bytes)`` on simulated machines."""
    found = run(worker_numbers.choices, choose_workers, MACHINES)
    batches = []
    for (name, machine), choice in zip(MACHINES.items(), found, strict=True):
        batches.append(worker_numbers.judge_choice(name, machine, choice["chosen"], choice["log"]))
    return {
        "machines (simulated)": len(found),
        "workers chosen": ", ".join(str(choice["chosen"]) for choice in found),
        "batches measured": f"{max(batches):,} at most",
    }
