"""Check of ``successive_halving``: how far each configuration is trained, from which checkpoint, and who is left."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, leaves, refuse
from checks.labs.ray_and_tuning.searches import not_a_pair

TRAIN, KEEP = "train(config, epochs - had, checkpoint)", "max(1, len(rung) // eta)"
SORT, NEXT = "trained.sort(key=lambda trial: trial[:2])", "rung = [trial[1:] for trial in trained[:keep]]"
NAN, LAST = "if not math.isnan(loss):", "if len(rung) == 1:"
LOOP, ADD = "    while True:\n", "trained.append((loss, place,"
EVER, ADDED = "    ever = {}\n" + LOOP, "\n                " + ADD
OFFICIAL = Reference("ray_and_tuning", "successive_halving", {
    "epochs · eta are trained on top of those that a trial has had: train the difference only":
        {TRAIN: TRAIN.replace(" - had", "")},
    "trials that go on start anew, from the first epoch: hand on the checkpoint":
        {TRAIN: "train(config, epochs, None)"},
    "trials that go on start anew and get only the epochs that are left: hand on the checkpoint":
        {TRAIN: "train(config, epochs - had, None)"},
    "a trial goes on from the checkpoint of another one":
        {NEXT: "saved = [one[3] for one in sorted(trained, key=lambda one: one[1])]\n"
               "        rung = [(*one[1:3], mine) for one, mine in zip(trained[:keep], saved)]"},
    "half of the trials go on, whatever eta is": {KEEP: KEEP.replace("eta", "2")},
    "a third of the trials goes on, whatever eta is": {KEEP: KEEP.replace("eta", "3")},
    "one of eta is dropped and the others go on: one of eta goes on": {KEEP: f"max(1, len(rung) - {KEEP})"},
    "one trial too many goes on: of n trials n // eta":
        {KEEP: KEEP.replace("eta", "eta + 1") + " if len(rung) > 2 else 1"},
    "n / eta is rounded up: n // eta go on": {KEEP: "-(-len(rung) // eta)"},
    "trials that have failed are not counted for n: they are": {KEEP: KEEP.replace("rung", "trained")},
    "the trials with the highest losses go on": {SORT: SORT.replace("trial[:2]", "(-trial[0], trial[1])")},
    "the first trials of a rung go on, whatever their losses are": {SORT: "pass"},
    "of equal losses the trial that was better in the rung before goes on: it is the one that comes first in `configs`":
        {SORT: SORT.replace("[:2]", "[0]")},
    "of equal losses the trial that comes last in `configs` goes on":
        {SORT: SORT.replace("trial[:2]", "(trial[0], -trial[1])")},
    "losses that hardly differ count as equal": {SORT: SORT.replace("trial[:2]", "(round(trial[0], 6), trial[1])")},
    "of equal losses only one trial is kept":
        {SORT: f"trained = list({{one[0]: one for one in reversed(trained)}}.values())\n        {SORT}"},
    "the lowest loss that a trial ever had decides: it is the one in this rung":
        {LOOP: EVER, ADD: "loss = ever[place] = min(loss, ever.get(place, loss))" + ADDED},
    "the losses of the first rung decide for ever":
        {LOOP: EVER, ADD: "loss = ever.setdefault(place, loss)" + ADDED},
    "the sum of a trial's losses decides: it is the one in this rung":
        {LOOP: EVER, ADD: "loss = ever[place] = loss + ever.get(place, 0)" + ADDED},
    "the last rung is missing: the one trial that is left is trained there too": {LAST: "if len(rung) // eta <= 1:"},
    "the search ends where one of several trials has not failed: it ends after a rung with one trial":
        {LAST: "if len(trained) == 1:"},
    "a trial whose loss is nan stays among the others: with it, their order is anything": {NAN: "if True:"},
    "a trial whose loss is nan counts as the best":
        {NAN: "loss = -math.inf if math.isnan(loss) else loss\n            if True:"},
    "the first rung has one epoch, whatever `first` is": {"had = first, 0": "had = 1, 0"},
    "each rung adds the epochs of the first: they are multiplied by eta":
        {"epochs * eta, epochs": "epochs + first, epochs"},
    "the epochs are squared from rung to rung: they are multiplied by eta":
        {"epochs * eta, epochs": "max(eta, epochs**2), epochs"},
})  # fmt: skip
TABLE = {"configurations": 27, "eta": 3, "first": 1, "kind": "as in the table"}
KINDS = ("equal losses", "some fail", "hardly different", "a few")


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
    """``train``, and how far each trial was trained. A trial is told by its checkpoint."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, rng, number = case, random.Random(case["seed"]), case["configurations"]
        self.configs = [{"lr": round(10 ** rng.uniform(-4, 0), 6), "batch_size": 16 << rng.randrange(3)}
                        for _ in range(number)]  # fmt: skip
        if number > 2:
            self.configs[-1] = self.configs[0] | {"batch_size": 8}  # the same learning rate
        first = case["first"]
        failing = range(2, number) if "fail" in case["kind"] else ()
        self.fails = {place: first for place in failing if rng.random() < 0.4}  # after how many epochs
        if failing:  # one trial fails in the second rung; the one before it never does
            self.fails[1] = first * case["eta"]
        self.made: dict[str, tuple[int, int]] = {}  # by checkpoint: whose, after how many epochs
        self.begun, self.epochs, self.anew, self.unknown = set[int](), [0] * number, 0, 0

    def loss(self, place: int, epochs: int) -> float:
        """After so many epochs: it falls, by curves that cross, and may rise again."""
        rng, kind = random.Random(f"{self.case['seed']} {place}"), self.case["kind"]
        if kind == "equal losses":
            return random.Random(f"{self.case['seed']} {place} {epochs}").randrange(4) / 2
        final, speed, rise = rng.uniform(-1, 1), rng.uniform(0.02, 1), rng.choice((0, 0, 0.01))
        if "fail" in kind:
            final -= (10, 5)[place] if place < 2 else 0  # in each rung there is one that goes on
        loss = final + 3 * math.exp(-speed * epochs) + rise * epochs
        return 1 + 1e-9 * loss if kind == "hardly different" else loss

    def __call__(self, config: Any, epochs: int, checkpoint: Any = None) -> tuple[float, Any]:
        place, had = self._whose(config, checkpoint)
        if place is None:
            self.unknown += 1
            return 1.0, checkpoint
        now = had + epochs
        fails = self.fails.get(place, math.inf)
        self.epochs[place] = max(self.epochs[place], int(min(now, fails)))
        checkpoint = f"checkpoint {len(self.made)}"
        self.made[repr(checkpoint)] = place, now
        return (math.nan if now >= fails else self.loss(place, now)), checkpoint

    def _whose(self, config: Any, checkpoint: Any) -> tuple[int | None, int]:
        if checkpoint is not None:
            place, had = self.made.get(repr(checkpoint), (None, 0))
            return (None if place is None or self.configs[place] != config else place), had
        mine = [place for place, one in enumerate(self.configs) if one == config]
        place = next((one for one in mine if one not in self.begun), None)
        if place is None and mine:
            self.anew, place = self.anew + 1, mine[0]
        self.begun.update([] if place is None else [place])
        return place, 0


def play(case: dict[str, Any], successive_halving: Callable[..., Any]) -> dict[str, Any]:
    train = Trainings(case)
    configs = copy.deepcopy(train.configs)
    with leaves(configs=configs):
        result = successive_halving(configs, train, case["eta"], case["first"])
    refuse(words := not_a_pair(result), words, measured=str(result)[:100])
    return {
        "trainings of something that is not in `configs`, or with another one's checkpoint": train.unknown,
        "trainings that were begun once more": train.anew,
        "epochs of the configurations, in their order": train.epochs,
        "epochs in all": sum(train.epochs),
        "the configuration that is returned": result[0],
        "its loss": float(result[1]),
    }
