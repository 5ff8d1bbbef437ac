"""What every search of this lab is judged by: its budget, the range of its samples, the best that it returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checks.engine import refuse
from checks.labs.ray_and_tuning.notes import Config

ROUNDING = 1e-9  # so much a learning rate may be outside the range, as a part of it


@dataclass(frozen=True)
class Search:
    """One call of the learner's function."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    seed: int
    most_epochs: int = 0  # of a trial, where a scheduler stops it


@dataclass
class Call:
    """One call of ``objective`` or ``train``: ``epochs`` more epochs for one trial, which has then had ``total``."""

    trial: Any
    config: Config
    epochs: int
    total: int
    loss: float
    pid: int


def place(search: Search, lr: float) -> float:
    """Where a learning rate lies on the logarithmic axis: 0 at low, 1 at high."""
    return math.log(lr / search.low) / math.log(search.high / search.low)


def judge_budget(search: Search, calls: Sequence[Call]) -> None:
    """One training for each trial."""
    number = len(calls)
    configs = Counter(tuple(sorted(call.config.items())) for call in calls)
    if not calls:
        words = "objective was never called"
    elif number > search.trials and len(configs) == search.trials:
        words = "configurations are trained a second time: keep the loss that objective has returned"
    elif number == search.trials * len(search.batch_sizes):
        words = "every batch size is tried for each of the trials: that is a grid"
    else:
        words = "the budget is one training for each trial"
    refuse(number != search.trials, words, measured=f"{number:,} trainings", expected=f"{search.trials:,}")


def judge_range(search: Search, calls: Sequence[Call]) -> None:
    """Learning rates between low and high, batch sizes of the list."""
    low, high = search.low, search.high
    rates = [call.config["lr"] for call in calls]
    if outside := [lr for lr in rates if not low * (1 - ROUNDING) <= lr <= high * (1 + ROUNDING)]:
        lr = max(outside, key=lambda lr: abs(place(search, max(lr, 1e-300)) - 0.5))  # the farthest
        words = "a learning rate is outside the range"
        if low <= 10 ** min(lr, 300) <= high or low <= math.exp(min(lr, 300)) <= high:
            words = "a learning rate is a logarithm: draw the exponent, then raise to its power"
        elif lr > 0 and abs(math.log(lr)) > 1.5 * abs(math.log(low)):
            words += ": are natural logarithms and powers of ten mixed?"
        refuse(True, words, measured=f"{lr:g}", expected=f"{low:g} to {high:g}")
    wrong = [size for call in calls if (size := call.config["batch_size"]) not in search.batch_sizes]
    refuse(wrong, "a batch size is not in the list", measured=str(wrong[:1]), expected=str(search.batch_sizes))


def judge_best(calls: Sequence[Call], result: Any) -> None:
    """The returned configuration is the best of those tried, with its loss."""
    refuse(words := not_a_pair(result), words, measured=str(result)[:100])
    config, loss = result
    good = [call for call in calls if call.loss == call.loss]
    lowest = min(call.loss for call in good)
    best = [call.config for call in good if call.loss == lowest]
    own = [call.loss for call in calls if call.config == config]
    if loss != loss or (any(one != one for one in own) and loss not in [call.loss for call in good]):
        words = "a training that has diverged wins: nan is neither less nor greater than a number, so leave it out"
    elif config in best:
        words = "the loss does not belong to the returned configuration"
    elif not own:
        words = "the returned configuration was not trained in this search"
    elif config == calls[-1].config:
        words = "the last configuration is returned, not the best"
    elif config == max(good, key=lambda call: call.loss).config:
        words = "the highest loss wins"
    else:
        words = "the returned configuration is not the best that was tried"
        words += "" if loss in own else ", and the loss does not belong to it"
    figures = {"measured": f"{config}, {loss:.8g}", "expected": f"{best[0]}, {lowest:.8g}"}
    refuse(config not in best or loss != lowest, words, **figures)


def not_a_pair(result: Any) -> str:
    """Why a result is no configuration and loss; "" if it is."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], dict):
        return "return two things: the best configuration (a dict), and its loss"
    config, loss = result
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        return "the second thing to return is a loss, a number"
    if set(config) != {"lr", "batch_size"}:
        return "the configuration that is returned has lr and batch_size, nothing else"
    return ""
