"""Successive halving by hand: what the check says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from utils.checks.ray_and_tuning.bookkeeping import Books, Config
from utils.checks.ray_and_tuning.halving import Halving, Keep, Ranking, Rung, budget, rungs_of
from utils.checks.ray_and_tuning.random_verdicts import pair_of
from utils.checks.verdicts import Wrong


def judge(cases: Sequence[Halving], books: Sequence[Books], results: Sequence[Any]) -> None:
    """All cases: what was trained, for how long, which went on, and what came back."""
    seen = [_epochs_by_index(case, book) for case, book in zip(cases, books, strict=True)]
    right = [rungs_of(case) for case in cases]
    _name_the_mistake(cases, seen, right)
    for case, found, rungs in zip(cases, seen, right, strict=True):
        _judge_levels(case, found, rungs)
        _judge_sizes(case, found, rungs)
        _judge_choice(case, found, rungs)
    for case, result, rungs in zip(cases, results, right, strict=True):
        _judge_result(case, result, rungs)


def _epochs_by_index(case: Halving, book: Books) -> list[int]:
    """For each configuration the epochs that its training has had. Each must have been started once."""
    if book.refused:
        raise Wrong(f"{book.refused[0]} ({case})")
    if not book.calls:
        raise Wrong(f"train was never called ({case})")
    started = Counter(_key(trial.config) for trial in book.trials)
    wanted = Counter(map(_key, case.configs))
    strange = [dict(key) for key in started if key not in wanted]
    if strange:
        raise Wrong(f"Something was trained that is not in configs ({case})", measured=strange[0])
    again = {key: number for key, number in started.items() if number > wanted[key]}
    if again:
        crashed = {_key(trial.config) for trial in book.trials if trial.crashed}
        if set(again) <= crashed:
            raise Wrong(f"A trial that has crashed is started again: it has failed, and stays out ({case})")
        raise Wrong(
            f"Trials that go on start anew: give train the checkpoint of what they have learned so far ({case})",
            measured=f"{book.epochs} epochs",
            expected=f"{budget(rungs_of(case))} epochs",
        )
    never = sum(wanted.values()) - sum(started.values())
    if never:
        raise Wrong(f"Every configuration is trained in the first rung; {never} never were ({case})")
    totals = {_key(trial.config): trial.total for trial in book.trials}
    return [totals[_key(config)] for config in case.configs]


def _key(config: Config) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(config.items()))


def _lowest_first(score: Callable[[int, list[float]], Any]) -> Ranking:
    """A ranking by a score of (index, losses by rung), without those that have failed."""

    def ranking(trained: list[tuple[int, list[float]]]) -> list[int]:
        alive = [(index, losses) for index, losses in trained if not math.isnan(losses[-1])]
        return [index for index, _ in sorted(alive, key=lambda one: score(*one))]

    return ranking


_CHOICE_MISTAKES: dict[str, Ranking] = {
    "Those with the highest losses go on": _lowest_first(lambda index, losses: -losses[-1]),
    "The first ones in the list go on, whatever their losses are": _lowest_first(lambda index, losses: index),
    "Of equal losses the one that comes first in configs goes on": _lowest_first(
        lambda index, losses: (losses[-1], -index)
    ),
    "Of equal losses the one that comes first in configs goes on, not the one that was better in the rung before": (
        _lowest_first(lambda index, losses: (*reversed(losses), index))
    ),
    "The losses of the first rung decide in all rungs: compare those that the trials have now": _lowest_first(
        lambda index, losses: losses[0]
    ),
    "The sum of a trial's losses decides: compare the losses that the trials have now": _lowest_first(
        lambda index, losses: sum(losses)
    ),
}
_SIZE_MISTAKES: dict[str, Keep] = {
    "Round down: of n trials n // eta go on, not more": lambda number, eta: max(1, -(-number // eta)),
    "One of eta goes on; yours drops one of eta": lambda number, eta: max(1, number - max(1, number // eta)),
    "Half of the trials go on, whatever eta is": lambda number, eta: max(1, number // 2),
}


def _name_the_mistake(cases: Sequence[Halving], seen: list[list[int]], right: list[list[Rung]]) -> None:
    """What one mistake explains in all cases is that mistake."""
    wanted = [_epochs_of(case, rungs) for case, rungs in zip(cases, right, strict=True)]
    if seen == wanted:
        return
    number = next(number for number, (one, other) in enumerate(zip(seen, wanted, strict=True)) if one != other)
    case, found, rungs = cases[number], seen[number], right[number]
    for sentence, keep in _SIZE_MISTAKES.items():
        if seen == [_epochs_of(one, rungs_of(one, keep=keep)) for one in cases]:
            sizes = [sum(epochs >= rung.epochs for epochs in found) for rung in rungs]
            raise Wrong(f"{sentence} ({case})", **_sizes(sizes, rungs))
    for sentence, ranking in _CHOICE_MISTAKES.items():
        if seen == [_epochs_of(one, rungs_of(one, ranking)) for one in cases]:
            for rung, following in pairwise(rungs):
                went = [index for index, epochs in enumerate(found) if epochs >= following.epochs]
                if went != following.trials:
                    where = f"{case}, after {rung.epochs} epochs"
                    raise Wrong(f"{sentence} ({where})", **_choice(rung, went, following.trials))


def _epochs_of(case: Halving, rungs: Sequence[Rung]) -> list[int]:
    return [max(rung.epochs for rung in rungs if index in rung.trials) for index in range(len(case.configs))]


def _sizes(sizes: Sequence[int], rungs: Sequence[Rung]) -> dict[str, str]:
    right = _listed([len(rung.trials) for rung in rungs])
    return {"measured": f"rungs of {_listed(sizes)} trials", "expected": right}


def _judge_levels(case: Halving, found: list[int], rungs: Sequence[Rung]) -> None:
    """Do trials stop after first, first·eta, first·eta², … epochs?"""
    levels = [rung.epochs for rung in rungs]
    got = sorted(set(found))
    if set(got) <= set(levels):
        return
    figures = {"measured": f"trials end after {_listed(got)} epochs", "expected": _listed(levels)}
    on_top = [case.first * sum(case.eta**k for k in range(number + 1)) for number in range(len(rungs) + 1)]
    if got[0] != levels[0]:
        raise Wrong(f"In the first rung each trial gets {case.first} epochs ({case})", **figures)
    if set(got) <= set(on_top):
        raise Wrong(
            "A rung says how many epochs a trial has had in all; yours gets so many more than it had. Train "
            f"the difference only ({case})",
            **figures,
        )
    if set(got) <= {case.first * (number + 1) for number in range(len(case.configs) + 2)} and case.eta > 1:
        longer = {case.first * case.eta ** len(rungs)}
        if set(got) - set(levels) != longer:
            raise Wrong(f"Every rung trains {case.eta} times as long as the one before ({case})", **figures)
    if set(got) - set(levels) == {case.first * case.eta ** len(rungs)}:
        raise Wrong(
            f"The search ends when a rung with one trial is trained; yours trains it further ({case})", **figures
        )
    raise Wrong(f"Rungs are at {case.first} · {case.eta}ᵏ epochs ({case})", **figures)


def _judge_sizes(case: Halving, found: list[int], rungs: Sequence[Rung]) -> None:
    """Are there as many trials in each rung as there should be?"""
    sizes = [sum(epochs >= rung.epochs for epochs in found) for rung in rungs]
    right = [len(rung.trials) for rung in rungs]
    if sizes == right:
        return
    figures = _sizes(sizes, rungs)
    first = next(number for number, pair in enumerate(zip(sizes, right, strict=True)) if pair[0] != pair[1])
    if sizes[first] == 0 and right[first - 1] < case.eta:
        raise Wrong(f"At least one trial goes on, also where n // eta is 0 ({case})", **figures)
    if sizes[: len(right) - 1] == right[:-1]:
        raise Wrong(f"The last rung is missing: the trial that is left is trained there too ({case})", **figures)
    good = [sum(not math.isnan(loss) for loss in rung.losses.values()) for rung in rungs]
    if any(loss != loss for rung in rungs for loss in rung.losses.values()):
        raise Wrong(
            "Of the n trials that a rung has trained n // eta go on. Failed ones count for n, and never go on "
            f"({case}; {good[0]} of {right[0]} do not fail in the first rung)",
            **figures,
        )
    raise Wrong(f"Of n trials n // eta go on, and at least one ({case})", **figures)


def _judge_choice(case: Halving, found: list[int], rungs: Sequence[Rung]) -> None:
    """Did the right ones go on?"""
    for rung, following in pairwise(rungs):
        went = [index for index, epochs in enumerate(found) if epochs >= following.epochs]
        if went == following.trials:
            continue
        where = f"{case}, after {rung.epochs} epochs"
        if any(math.isnan(rung.losses[index]) for index in went):
            raise Wrong(
                "A trial that has failed goes on: nan is neither less nor greater than a number, so sorting does not "
                f"move it to the end ({where})"
            )
        raise Wrong(f"Not the trials with the lowest losses go on ({where})", **_choice(rung, went, following.trials))


def _choice(rung: Rung, went: list[int], right: list[int]) -> dict[str, str]:
    def told(indices: list[int]) -> str:
        return "losses " + ", ".join(f"{rung.losses[index]:.3g}" for index in indices[:6])

    if [rung.losses[index] for index in went] == [rung.losses[index] for index in right]:
        return {"measured": f"configs {_listed(went)}", "expected": _listed(right)}
    return {"measured": told(went), "expected": told(right)}


def _judge_result(case: Halving, result: Any, rungs: Sequence[Rung]) -> None:
    config, loss = pair_of(result)
    (winner,) = rungs[-1].trials
    right, lowest = case.configs[winner], rungs[-1].losses[winner]
    figures = {"measured": [config, loss], "expected": [right, lowest]}
    if config != right:
        raise Wrong(f"The configuration that is left in the last rung wins ({case})", **figures)
    if loss != lowest:
        earlier = [rung.losses[winner] for rung in rungs[:-1]]
        what = "of an earlier rung" if loss in earlier else "of another trial"
        raise Wrong(f"The loss is that after the last rung, not one {what} ({case})", **figures)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
