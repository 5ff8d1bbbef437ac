"""Check of ``successive_halving``: how far each configuration is trained, from which checkpoint, and who is left."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, leaves, refuse
from checks.labs.ray_and_tuning.searches import pair

TRAIN, KEEP = "train(config, epochs - had, checkpoint)", "max(1, len(rung) // eta)"
SORT, LAST = "trained.sort(key=lambda trial: trial[:2])", "if len(rung) == 1:"
NAN, ADD = "if not math.isnan(loss):", "trained.append((loss, place,"
ANEW = "a trial that goes on starts anew: hand on the checkpoint that train has returned"
OFFICIAL = Reference("ray_and_tuning", "successive_halving", {
    "epochs · eta are trained on top of those that a trial has had: train the difference only":
        {TRAIN: TRAIN.replace(" - had", "")},
    ANEW: {TRAIN: "train(config, epochs - had, None)"},
    "half of the trials go on, whatever eta is": {KEEP: KEEP.replace("eta", "2")},
    "a third of the trials goes on, whatever eta is": {KEEP: KEEP.replace("eta", "3")},
    "one of eta is dropped and the others go on: one of eta goes on": {KEEP: f"max(1, len(rung) - {KEEP})"},
    "n / eta is rounded up: n // eta go on": {KEEP: "-(-len(rung) // eta)"},
    "trials that have failed are not counted for n: they are": {KEEP: KEEP.replace("rung", "trained")},
    "the trials with the highest losses go on": {SORT: SORT.replace("trial[:2]", "(-trial[0], trial[1])")},
    "the first trials of a rung go on, whatever their losses are": {SORT: "pass"},
    "of equal losses the trial that was better in the rung before goes on: it is the one that comes first in `configs`":
        {SORT: SORT.replace("[:2]", "[0]")},
    "of equal losses the trial that comes last in `configs` goes on":
        {SORT: SORT.replace("trial[:2]", "(trial[0], -trial[1])")},
    "the lowest loss that a trial ever had decides: it is the one in this rung":
        {"    while True:\n": "    ever = {}\n    while True:\n",
         ADD: "loss = ever[place] = min(loss, ever.get(place, loss))\n                " + ADD},
    "the last rung is missing: the one trial that is left is trained there too": {LAST: "if len(rung) // eta <= 1:"},
    "the search ends where one of several trials has not failed: it ends after a rung with one trial":
        {LAST: "if len(trained) == 1:"},
    "a trial whose loss is nan stays among the others: with it, their order is anything": {NAN: "if True:"},
    "a trial whose loss is nan counts as the best":
        {NAN: "loss = -math.inf if math.isnan(loss) else loss\n            if True:"},
    "the first rung has one epoch, whatever `first` is": {"had = first, 0": "had = 1, 0"},
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


class Trainings:
    """``train``, and how far each trial was trained."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, rng, number = case, random.Random(case["seed"]), case["configurations"]
        self.configs = [{"lr": round(10 ** rng.uniform(-4, 0), 6), "batch_size": 16 << place % 3}
                        for place in range(number)]  # fmt: skip
        failing = range(2, number) if "fail" in case["kind"] else ()
        self.fails = {place: case["first"] for place in failing if rng.random() < 0.4}  # after how many epochs
        if failing:  # one trial fails in the second rung; the one before it never does
            self.fails[1] = case["first"] * case["eta"]
        self.made: dict[Any, tuple[int, int]] = {}  # by checkpoint: whose, after how many epochs
        self.epochs = [0] * number

    def loss(self, place: int, epochs: int) -> float:
        """After so many epochs: it falls, by curves that cross, and may rise again."""
        rng, kind = random.Random(f"{self.case['seed']} {place}"), self.case["kind"]
        if kind == "equal losses":
            return random.Random(f"{self.case['seed']} {place} {epochs}").randrange(4) / 2
        final, speed, rise = rng.uniform(-1, 1), rng.uniform(0.02, 1), rng.choice((0, 0, 0.01))
        if "fail" in kind:
            final -= (10, 5)[place] if place < 2 else 0  # in each rung there is one that goes on
        return final + 3 * math.exp(-speed * epochs) + rise * epochs

    def __call__(self, config: Any, epochs: int, checkpoint: Any = None) -> tuple[float, Any]:
        refuse(config not in self.configs, "a configuration is trained that is not in `configs`")
        place = self.configs.index(config)
        refuse(checkpoint is None and self.epochs[place], ANEW)
        whose, had = (place, 0) if checkpoint is None else self.made.get(checkpoint, (-1, 0))
        refuse(whose != place, "a trial goes on from a checkpoint that is not its own")
        self.epochs[place] = now = had + epochs
        checkpoint = f"checkpoint {len(self.made)}"
        self.made[checkpoint] = place, now
        return (math.nan if now >= self.fails.get(place, math.inf) else self.loss(place, now)), checkpoint


def play(case: dict[str, Any], successive_halving: Callable[..., Any]) -> dict[str, Any]:
    train = Trainings(case)
    configs = copy.deepcopy(train.configs)
    with leaves(configs=configs):
        config, loss = pair(successive_halving(configs, train, case["eta"], case["first"]))
    return {
        "epochs of the configurations, in their order": train.epochs,
        "epochs in all": sum(train.epochs),
        "the configuration that is returned": config,
        "its loss": loss,
    }
