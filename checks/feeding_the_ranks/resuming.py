"""Exercise 4: ``train_resumed(dataset, first, epochs, step, evaluate)``, from epoch 0 on and from a later one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts
from checks.feeding_the_ranks import epochs

RUNS = ("whole", "resumed")


def draw(rng: random.Random) -> list[Case]:
    return epochs.draw(rng, (rng.choice((1, 3)),))


def scene(case: Case, watch: Any, facts: Facts) -> None:
    epochs.fork()
    for name, first in (("whole", 0), ("resumed", case["first"])):
        data, seen, evaluated = epochs.Samples(case), [], []
        step, evaluate = epochs.recorder(seen), epochs.evaluator(data, seen, evaluated, case["epochs"] - 1)
        with watch.step("train_resumed", dataset=data):
            watch.answers["train_resumed"](data, first, case["epochs"], step, evaluate)
            over = list(evaluated)  # (what still runs in a thread is not among them)
        facts[name] = {"seen": seen, "reads": data.reads(), "evaluated": over, "first": first}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    found = [epochs.orders(case, [facts[run] for facts in world], world[0][run]["first"]) for run in RUNS]
    broken = next((one for one in found if isinstance(one, Broken)), None)
    whole, late = found
    if broken is None and isinstance(whole, dict) and isinstance(late, dict):
        broken = _evaluations(case, world) or _resumed(case, whole, late) or _idle(world)
    if broken:
        yield broken


def _evaluations(case: Case, world: Sequence[Facts]) -> Broken | None:
    batches = -(-epochs.share(case) // epochs.BATCH)
    for run in [facts[name] for name in RUNS for facts in world]:
        wanted = list(range(run["first"], case["epochs"]))
        if (found := [epoch for epoch, *_ in run["evaluated"]]) != wanted:
            words = "evaluate(epoch) is called once after each epoch, and is over before the loop goes on"
            return Broken("value:evaluate", words, f"epochs {found}", f"epochs {wanted}")
        if [steps for _, steps, _ in run["evaluated"]] != [batches * (number + 1) for number in range(len(wanted))]:
            words = "evaluate comes after the last step of its epoch, and before the first of the next"
            return Broken("value:evaluate", words)
    return None


def _resumed(case: Case, whole: epochs.Orders, late: epochs.Orders) -> Broken | None:
    for epoch, shares in late.items():
        if shares == whole[epoch]:
            continue
        seen = next((other for other in whole if whole[other] == shares), None)
        what = f"the order of epoch {seen}" if seen is not None else "an order that no epoch of the whole run has"
        words = f"a run that resumes with epoch {case['first']} gives epoch {epoch} {what}: the epoch is counted from "
        words += "the very first one, also for the first iterator after resuming"
        return Broken("value:resumed", words)
    return None


def _idle(world: Sequence[Facts]) -> Broken | None:
    idle = [epoch for facts in world for run in RUNS for epoch, _, up in facts[run]["evaluated"] if not up]
    if not idle:
        return None
    words = f"no worker reads for the next epoch while epoch {idle[0]} is evaluated: the order is right, but the next "
    words += "epoch waits for its workers. Keep the early iter(loader), with set_epoch before it"
    return Broken("value:idle", words)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    found = [up for _, world in played for facts in world for run in RUNS for *_, up in facts[run]["evaluated"][:-1]]
    resumed = ", ".join(str(case["first"]) for case, _ in played)
    up = f"{sum(found)} of {len(found)}"
    return epochs.figures(played) | {
        f"resumed with epoch {resumed}": "as if never stopped",
        "evaluations with workers up": up,
    }


CONTRACT = Contract(
    name="feeding_the_ranks.resumed",
    rules={"train_resumed": epochs.RULES},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=epochs.MISTAKES,
    figures=figures,
)
