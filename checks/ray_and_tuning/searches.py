"""What every search of this lab is judged by: its budget, the range of its samples, the best that it returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checks.contracts import Broken
from checks.ray_and_tuning.bookkeeping import Call, Config

ROUNDING = 1e-9  # so much a learning rate may be outside the range, as a part of it


@dataclass(frozen=True)
class Search:
    """One call of the learner's function."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    seed: int

    def __str__(self) -> str:
        return f"{self.trials} trials from {self.low:g} to {self.high:g}"


def place(search: Search, lr: float) -> float:
    """Where a learning rate lies on the logarithmic axis: 0 at low, 1 at high."""
    return math.log(lr / search.low) / math.log(search.high / search.low)


def judge_budget(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    """One training for each trial."""
    if len(calls) == search.trials:
        return
    figures = f"{len(calls):,} trainings", f"{search.trials:,}"
    configs = Counter(tuple(sorted(call.config.items())) for call in calls)
    if not calls:
        words = "objective was never called"
    elif len(calls) > search.trials and len(configs) == search.trials:
        words = "configurations are trained a second time: keep the loss that objective has returned"
    elif len(calls) == search.trials * len(search.batch_sizes):
        words = "every batch size is tried for each of the trials: that is a grid"
    else:
        words = "the budget is one training for each trial"
    yield Broken("value:budget", words, *figures)


def judge_range(search: Search, calls: Sequence[Call]) -> Iterator[Broken]:
    """Learning rates between low and high, batch sizes of the list."""
    rates = [call.config["lr"] for call in calls]
    outside = [lr for lr in rates if not search.low * (1 - ROUNDING) <= lr <= search.high * (1 + ROUNDING)]
    if outside:
        lr = max(outside, key=lambda lr: abs(place(search, max(lr, 1e-300)) - 0.5))  # the farthest
        why = "a learning rate is outside the range"
        if search.low <= 10 ** min(lr, 300) <= search.high or search.low <= math.exp(min(lr, 300)) <= search.high:
            why = "a learning rate is a logarithm: draw the exponent, then raise to its power"
        elif lr > 0 and abs(math.log(lr)) > 1.5 * abs(math.log(search.low)):
            why += ": are natural logarithms and powers of ten mixed?"
        yield Broken("value:range", why, f"{lr:g}", f"{search.low:g} to {search.high:g}")
    elif wrong := [size for call in calls if (size := call.config["batch_size"]) not in search.batch_sizes]:
        yield Broken("value:size", "a batch size is not in the list", wrong[0], str(search.batch_sizes))


def judge_best(calls: Sequence[Call], result: Any) -> Iterator[Broken]:
    """The returned configuration is the best of those tried, with its loss."""
    if words := not_a_pair(result):
        yield Broken("value:pair", words, str(result)[:100])
        return
    config, loss = result
    if not (good := [call for call in calls if not failed(call)]):
        return
    lowest = min(call.loss for call in good)
    best = [call.config for call in good if call.loss == lowest]
    if config in best and loss == lowest:
        return
    own = [call for call in calls if call.config == config]
    if loss != loss or (any(map(failed, own)) and loss not in [call.loss for call in good]):
        words = "a training that has diverged wins: nan is neither less nor greater than a number, so leave it out"
    elif config in best:
        words = "the loss does not belong to the returned configuration"
    elif not own:
        words = "the returned configuration was not trained in this search"
    elif config == calls[-1].config:
        words = "the last configuration is returned, not the best"
    elif config == max(good, key=lambda call: call.loss).config:
        words = "the highest loss wins"
    elif loss not in [call.loss for call in own]:
        words = "the loss does not belong to the returned configuration, which is not the best that was tried"
    else:
        words = "the returned configuration is not the best that was tried"
    yield Broken("value:best", words, f"{config}, {loss:.8g}", f"{best[0]}, {lowest:.8g}")


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


def failed(call: Call) -> bool:
    return call.loss is None or call.loss != call.loss


def is_config(config: Config) -> bool:
    numbers = isinstance(config, dict) and set(config) == {"lr", "batch_size"}
    return numbers and all(isinstance(one, int | float) and not isinstance(one, bool) for one in config.values())
