"""Check of ``successive_halving``: how far each configuration is trained, from which checkpoint, and who is left."""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.labs.ray_and_tuning import notes
from checks.labs.ray_and_tuning.notes import Training
from checks.labs.ray_and_tuning.random_searching import pair

TRAIN, KEEP = "train(config, epochs - had, checkpoint)", "max(1, len(rung) // eta)"
SORT, LAST = "trained.sort(key=lambda trial: trial[:2])", "if len(rung) == 1:"
OFFICIAL = Reference("ray_and_tuning", "successive_halving", {
    "epochs · eta are trained on top of those that a trial has had: train the difference only":
        {TRAIN: TRAIN.replace(" - had", "")},
    "a trial that goes on starts anew: hand on the checkpoint that train has returned":
        {TRAIN: "train(config, epochs - had, None)"},
    "half of the trials go on, whatever eta is": {KEEP: KEEP.replace("eta", "2")},
    "n / eta is rounded up: n // eta go on": {KEEP: "-(-len(rung) // eta)"},
    "trials that have failed are not counted for n: they are": {KEEP: KEEP.replace("rung", "trained")},
    "the trials with the highest losses go on": {SORT: SORT.replace("trial[:2]", "(-trial[0], trial[1])")},
    "the first trials of a rung go on, whatever their losses are": {SORT: "pass"},
    "of equal losses the trial that was better in the rung before goes on: it is the one that comes first in `configs`":
        {SORT: SORT.replace("[:2]", "[0]")},
    "the last rung is missing: the one trial that is left is trained there too": {LAST: "if len(rung) // eta <= 1:"},
    "the search ends where one of several trials has not failed: it ends after a rung with one trial":
        {LAST: "if len(trained) == 1:"},
    "a trial whose loss is nan stays among the others: with it, their order is anything":
        {"if not math.isnan(loss):": "if True:"},
    "each rung adds the epochs of the first: they are multiplied by eta":
        {"epochs * eta, epochs": "epochs + first, epochs"},
})  # fmt: skip
TABLE = {"configurations": 27, "eta": 3, "first": 1, "kind": "as in the table"}
KINDS = ("equal losses", "some fail", "any", "a few")


def cases(rng: random.Random, number: int) -> dict[str, Any]:
    if number == 0:
        return TABLE | {"seed": 1}
    kind = KINDS[(number - 1) % len(KINDS)]
    return {
        "configurations": rng.randint(1, 4) if kind == "a few" else rng.randint(6, 24),
        "eta": rng.choice((2, 3, 4)),
        "first": rng.randint(1, 3),
        "kind": kind,
        "seed": rng.getrandbits(30),
    }


def _loss(case: dict[str, Any], place: int, epochs: int, fails: float) -> float:
    """Of a configuration after so many epochs: it falls, by curves that cross, and may rise again, or end in nan."""
    rng, kind = random.Random(f"{case['seed']} {place}"), case["kind"]
    if kind == "equal losses":
        return random.Random(f"{case['seed']} {place} {epochs}").randrange(4) / 2
    final, speed, rise = rng.uniform(-1, 1), rng.uniform(0.02, 1), rng.choice((0, 0, 0.01))
    if "fail" in kind:
        final -= (10, 5)[place] if place < 2 else 0  # in each rung there is one that goes on
    return final + 3 * math.exp(-speed * epochs) + rise * epochs if epochs < fails else math.nan


@exercise(OFFICIAL, cases, title="Successive halving", difficulty=2, minutes=30)
def halving_by_hand(case: dict[str, Any], successive_halving: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``successive_halving(configs, train, eta, first)``."""
    rng, number, first, eta = random.Random(case["seed"]), case["configurations"], case["first"], case["eta"]
    configs = [{"lr": round(10 ** rng.uniform(-4, 0), 6), "batch_size": 16 << place % 3} for place in range(number)]
    known, fails = copy.deepcopy(configs), [math.inf] * number  # after how many epochs
    if "fail" in case["kind"]:  # the first one never fails, and the next in the second rung
        fails[1:] = [first * eta, *(first if rng.random() < 0.4 else math.inf for _ in range(2, number))]

    def loss(config: Any, epochs: int) -> float:
        refuse(config not in known, "a configuration is trained that is not in `configs`")
        return _loss(case, known.index(config), epochs, fails[known.index(config)])

    with tempfile.TemporaryDirectory() as folder, leaves(configs=configs):
        train = Training(f"{folder}/notes", loss=loss)
        best, lowest = pair(successive_halving(configs, train, eta, first))
        calls = notes.read(train.path)
    return {
        "epochs of the configurations, in their order": [
            max((call["total"] for call in calls if call["config"] == config), default=0) for config in known
        ],
        "epochs in all": sum(call["epochs"] for call in calls),
        "the configuration that is returned": best,
        "its loss": lowest,
    }
