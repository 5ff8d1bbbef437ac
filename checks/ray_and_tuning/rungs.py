"""Successive halving as the lab describes it, on learning curves that are drawn, and as mistakes would have it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from checks.contracts import Case

Ranking = Callable[[list[tuple[int, list[float]]]], list[int]]
"""From (place in configs, its losses by rung) of those that were trained to places, those that go on first."""
Keep = Callable[[int, int, int], int]
"""From the number of trials in a rung, of those that have not failed, and eta, to how many go on."""
CRASHED = "crashed"
KINDS = {
    # number, eta, digits that losses have, share that fails, share of copies
    "as in the table": (27, 3, 9, 0, 0),
    "equal losses": (None, 2, 1, 0, 0),
    "many equal losses": (None, None, 0, 0, 0.2),
    "curves that cross and rise": (None, None, 9, 0, 0),
    "some diverge, some crash": (None, None, 2, 0.6, 0),
    "the same configurations again": (None, None, 9, 0.2, 0.5),
    "few, which hardly differ": (None, None, 15, 0, 0),
    "only one": (1, None, 9, 0, 0),
}


@dataclass
class Rung:
    """The epochs that each of its trials has had, their places in configs, and their losses (nan: failed)."""

    epochs: int
    trials: list[int]
    losses: dict[int, float]


def drawn(rng: random.Random, name: str) -> Case:
    """A search in which each rung has a trial that goes on."""
    number, eta, digits, fails, copies = KINDS[name]
    while True:
        eta_now = eta or rng.choice((2, 3, 4))
        count = number or (rng.randint(2, 3) if "few" in name else rng.randint(8, 24))
        configs = [{"lr": float(f"{10 ** rng.uniform(-4, -0.5):.4g}"), "batch_size": rng.choice((16, 32, 64))}
                   for _ in range(count)]  # fmt: skip
        configs = [rng.choice(configs) if rng.random() < copies else one for one in configs]
        known: dict[str, list[Any]] = {}
        curves = [known.setdefault(str(one), _curve(rng, fails, "rise" in name)) for one in configs]
        if "hardly" in name:
            curves = [[1 + 1e-9 * starts, 1 + 1e-9 * ends, *rest] for starts, ends, *rest in curves]
        case = {
            "ranks": 1,
            "configurations": count,
            "eta": eta_now,
            "first": 1 if number == 27 else rng.choice((1, 1, 2, 3)),
            "losses": name,
        }
        case |= {"configs": configs, "curves": curves, "digits": [digits], "seed": rng.getrandbits(30)}
        case["checkpoints"] = rng.choice(("strings", "numbers", "dicts"))
        right = rungs_of(case)
        told_apart = all(rungs_of(case, CHOICES[words]) != right for words in APART.get(name, ()))
        if "crash" in name:  # in some rung fewer are left than may go on, and in some one is left of many
            left = [(len(rung.trials), sum(v == v for v in rung.losses.values())) for rung in right]
            told_apart = any(n < of // eta_now for of, n in left) and any(n == 1 < of for of, n in left)
            told_apart &= rungs_of(case, keep=SIZES["trials that have failed are not counted for n"]) != right
        if told_apart and all(any(v == v for v in rung.losses.values()) for rung in right):
            return case


def _curve(rng: random.Random, fails: float, rises: bool) -> list[Any]:
    """Where it starts and ends, how fast, how fast it rises again; from which epoch on it fails, and how."""
    ends = rng.uniform(-0.5, 2)
    at = rng.choice((1, 1, 2, 4, 9)) if rng.random() < fails else 10**9
    return [2.5, ends, rng.uniform(0.05, 0.6), rng.uniform(0, 0.1) if rises else 0, at, rng.choice(("nan", CRASHED))]


def loss_of(case: Case, place: int, epochs: int) -> float | str:
    """After so many epochs in all: a loss, nan, or "crashed"."""
    starts, ends, pace, rise, fails_at, how = case["curves"][place]
    if epochs >= fails_at:
        return math.nan if how == "nan" else CRASHED
    return round(ends + (starts - ends) * math.exp(-pace * epochs) + rise * epochs, case["digits"][0])


def lowest_first(score: Callable[[int, list[float]], Any]) -> Ranking:
    """A ranking by a score of (place, losses by rung), without those that have failed."""

    def ranking(trained: list[tuple[int, list[float]]]) -> list[int]:
        alive = [one for one in trained if not math.isnan(one[1][-1])]
        return [place for place, _ in sorted(alive, key=lambda one: score(*one))]

    return ranking


def usual_keep(number: int, _: int, eta: int) -> int:
    return max(1, number // eta)


def rungs_of(
    case: Case,
    ranking: Ranking = lowest_first(lambda place, losses: (losses[-1], place)),  # noqa: B008
    keep: Keep = usual_keep,
) -> list[Rung]:
    """The rungs of a search; other rankings and other numbers to keep are mistakes."""
    alive, rungs, epochs = list(range(len(case["configs"]))), [], case["first"]
    losses: dict[int, list[float]] = {place: [] for place in alive}
    while True:
        for place in alive:
            loss = loss_of(case, place, epochs)
            losses[place].append(math.nan if loss == CRASHED else loss)
        rungs.append(Rung(epochs, alive, {place: losses[place][-1] for place in alive}))
        if len(alive) == 1 or len(rungs) > 20:
            return rungs
        ordered = ranking([(place, losses[place]) for place in alive])
        alive = sorted(ordered[: keep(len(alive), len(ordered), case["eta"])])
        epochs *= case["eta"]
        if not alive:
            return rungs


def budget(rungs: Sequence[Rung]) -> int:
    """Epochs, if each trial goes on where it was."""
    trained, epochs = 0, 0
    for rung in rungs:
        trained += len(rung.trials) * (rung.epochs - epochs)
        epochs = rung.epochs
    return trained


CHOICES: dict[str, Ranking] = {
    "losses that hardly differ count as equal (are they rounded?)": lowest_first(
        lambda place, losses: (round(losses[-1], 6), place)
    ),
    "those with the highest losses go on": lowest_first(lambda place, losses: -losses[-1]),
    "the first ones in the list go on, whatever their losses are": lowest_first(lambda place, losses: place),
    "of equal losses the one that comes last in configs goes on": lowest_first(
        lambda place, losses: (losses[-1], -place)
    ),
    "of equal losses the one that was better in the rung before goes on": lowest_first(
        lambda place, losses: (*reversed(losses), place)
    ),
    "the losses of the first rung decide in all rungs": lowest_first(lambda place, losses: losses[0]),
    "the sum of a trial's losses decides": lowest_first(lambda place, losses: sum(losses)),
    "the lowest loss that a trial ever had decides": lowest_first(lambda place, losses: (min(losses), place)),
}
SIZES: dict[str, Keep] = {
    "n / eta is rounded up": lambda number, alive, eta: max(1, -(-number // eta)),
    "one of eta is dropped, where one of eta should go on": lambda n, alive, eta: max(1, n - max(1, n // eta)),
    "half of the trials go on, whatever eta is": lambda number, alive, eta: max(1, number // 2),
    "trials that have failed are not counted for n": lambda number, alive, eta: max(1, alive // eta),
    "none goes on where n // eta is 0": lambda number, alive, eta: number // eta,
}
APART = {
    "equal losses": ("of equal losses the one that was better in the rung before goes on",),
    "many equal losses": ("of equal losses the one that comes last in configs goes on",),
    "curves that cross and rise": (
        "the sum of a trial's losses decides",
        "the lowest loss that a trial ever had decides",
    ),
    "few, which hardly differ": ("losses that hardly differ count as equal (are they rounded?)",),
}  # cases in which these mistakes make a difference
