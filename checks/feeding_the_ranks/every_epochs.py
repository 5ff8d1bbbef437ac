"""Exercise 3: ``train_every_epoch(dataset, epochs, step)``, with real loaders on real ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts
from checks.feeding_the_ranks import epochs


def draw(rng: random.Random) -> list[Case]:
    cases = epochs.draw(rng, (2, 3, 3, 1, rng.choice((4, 5))))
    again = cases[0] | {"epochs": 9, "seed": rng.getrandbits(30)}  # as many samples, of another data set
    return [*cases, again]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    epochs.fork()
    facts["seen"], data = [], epochs.Samples(case)
    step = epochs.recorder(facts["seen"])
    watch.call("train_every_epoch", dataset=data, epochs=case["epochs"], step=step)
    facts["reads"] = data.reads()


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    found = epochs.orders(case, world)
    if isinstance(found, Broken):
        yield found


CONTRACT = Contract(
    name="feeding_the_ranks.every_epoch",
    rules={"train_every_epoch": epochs.RULES},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=epochs.MISTAKES,
    figures=epochs.figures,
)
