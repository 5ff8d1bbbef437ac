"""Successive halving by hand: the situations, what should happen, and what a rank does in them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from utils.checks.ray_and_tuning.bookkeeping import OUT_OF_MEMORY, Config, Training
from utils.checks.ray_and_tuning.curves import Landscape
from utils.checks.verdicts import Wrong

Ranking = Callable[[list[tuple[int, list[float]]]], list[int]]
"""From (index, its losses by rung) of those that were trained to the indices, those that go on first."""
Keep = Callable[[int, int], int]
"""From the number of trials in a rung, and eta, to how many go on."""


def drawn(
    number: int, seed: int, low: float = 1e-4, high: float = 0.3, sizes: Sequence[int] = (16, 32)
) -> list[Config]:
    """So many random configurations."""
    rng = random.Random(seed)
    exponents = [rng.uniform(math.log10(low), math.log10(high)) for _ in range(number)]
    return [{"lr": float(f"{10**exponent:.4g}"), "batch_size": rng.choice(list(sizes))} for exponent in exponents]


@dataclass(frozen=True)
class Halving:
    """One call of the learner's function.

    Args:
        name: for sentences.
        configs, eta, first: its arguments.
        landscape: the losses.
    """

    name: str
    configs: list[Config]
    eta: int
    first: int
    landscape: Landscape = field(default=Landscape())

    def __str__(self) -> str:
        return f"{len(self.configs)} configurations, eta {self.eta}: {self.name}"


def _halvings() -> list[Halving]:
    fails = Landscape(best_lr=0.04, diverges_at=0.05, largest_batch=64)
    return [
        Halving("as in the table", drawn(27, seed=5), 3, 1),
        Halving("curves that cross", drawn(16, seed=8), 2, 1, Landscape(crossing=1.2, pace=0.15)),
        Halving("an odd number", drawn(11, seed=7), 2, 2),
        Halving("equal losses", drawn(12, seed=8, sizes=(32,)), 2, 1, Landscape(digits=1)),
        Halving("equal losses again", drawn(12, seed=0), 2, 1, Landscape(digits=1)),
        Halving("some diverge, some crash", drawn(18, seed=20, high=3.0, sizes=(32, 64, 128)), 3, 1, fails),
        Halving("few survive", drawn(18, seed=35, high=3.0, sizes=(32, 64, 128)), 3, 1, fails),
        Halving("eta is larger than their number", drawn(2, seed=10), 4, 3),
        Halving("only one", drawn(1, seed=11), 3, 2),
    ]


HALVINGS = _halvings()
MANY = HALVINGS[0]


@dataclass
class Rung:
    """One rung: the epochs that each of its trials has had, their indices, and their losses (nan: failed)."""

    epochs: int
    trials: list[int]
    losses: dict[int, float]


def _ascending(trained: list[tuple[int, list[float]]]) -> list[int]:
    alive = [one for one in trained if not math.isnan(one[1][-1])]  # first: nan would break sorting
    return [index for index, _ in sorted(alive, key=lambda one: one[1][-1])]


def rungs_of(
    case: Halving,
    ranking: Ranking = _ascending,
    keep: Keep = lambda number, eta: max(1, number // eta),
) -> list[Rung]:
    """Successive halving as the lab describes it; other rankings and other numbers to keep are mistakes."""
    alive, rungs, epochs = list(range(len(case.configs))), [], case.first
    losses: dict[int, list[float]] = {index: [] for index in alive}
    while True:
        for index in alive:
            try:
                losses[index].append(case.landscape(case.configs[index], epochs))
            except MemoryError:
                losses[index].append(math.nan)
        rungs.append(Rung(epochs, alive, {index: losses[index][-1] for index in alive}))
        if len(alive) == 1 or len(rungs) > 20:
            return rungs
        alive = sorted(ranking([(index, losses[index]) for index in alive])[: keep(len(alive), case.eta)])
        epochs *= case.eta
        if not alive:
            return rungs


def budget(rungs: Sequence[Rung]) -> int:
    """Epochs, if each trial goes on where it was."""
    trained, epochs = 0, 0
    for rung in rungs:
        trained += len(rung.trials) * (rung.epochs - epochs)
        epochs = rung.epochs
    return trained


def run_halvings(successive_halving: Any, cases: Sequence[Halving], paths: Sequence[str]) -> list[Any]:
    """In a rank: what the learner's function returns for each case."""
    results = []
    for case, path in zip(cases, paths, strict=True):
        try:
            results.append(
                successive_halving([dict(one) for one in case.configs], Training(path), case.eta, case.first)
            )
        except BaseException as error:
            cause = error.__cause__
            if isinstance(cause, RuntimeError) and str(cause) == OUT_OF_MEMORY:
                raise Wrong(
                    "One trial that crashes ends the whole search: catch its RuntimeError, and go on without it"
                ) from None
            raise
    return results
