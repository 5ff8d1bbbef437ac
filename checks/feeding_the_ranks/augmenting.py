"""Exercise 5: ``train_augmented(dataset, epochs, step)``, whose data set has to know the epoch in its workers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts
from checks.feeding_the_ranks import epochs


def draw(rng: random.Random) -> list[Case]:
    return epochs.draw(rng, (2, rng.choice((1, 3))))


def scene(case: Case, watch: Any, facts: Facts) -> None:
    epochs.fork()
    facts["seen"], data = [], epochs.Samples(case)
    step = epochs.recorder(facts["seen"])
    watch.call("train_augmented", dataset=data, epochs=case["epochs"], step=step)
    facts["reads"] = data.reads()


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    found = epochs.orders(case, world)
    broken = found if isinstance(found, Broken) else None
    for rank, facts in enumerate(world) if not broken else ():
        seen = [
            (epoch, *sample) for epoch, samples in epochs.decoded(case, facts["seen"]) for sample in samples if sample
        ]
        if not all(by_worker for *_, by_worker in seen):
            words = (
                "samples are read by the training process itself, so the GPU waits for each: keep num_workers=1 or more"
            )
            broken = broken or Broken("value:reader", words, rank=rank)
        stale = next(((epoch, believed) for epoch, _, believed, _ in seen if believed != epoch), None)
        if stale and not broken:
            broken = _stale(*stale, {believed for _, _, believed, _ in seen})
    if broken:
        yield broken


def _stale(epoch: int, believed: int, all_believed: set[int]) -> Broken:
    if all_believed == {-1}:
        words = "the data set never hears of an epoch: the noise is the same in all of them"
    elif len(all_believed) == 1:
        words = (
            "the workers keep the data set of the first epoch: they hold a copy that was made when they started, and "
        )
        words += "set_epoch changes the original"
    else:
        words = "the data set believes in another epoch while its samples are read"
    return Broken("value:stale", words, f"epoch {believed} in a worker", f"epoch {epoch}")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return epochs.figures(played) | {"samples read in workers": "all, each with its own epoch"}


CONTRACT = Contract(
    name="feeding_the_ranks.augmented",
    rules={"train_augmented": epochs.RULES},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=epochs.MISTAKES,
    figures=figures,
)
