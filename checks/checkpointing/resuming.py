"""Exercises 2 and 3: ``train(task, folder)`` alone and on two ranks, killed and started again until it is done."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from checks.checkpointing.life_verdicts import judge
from checks.checkpointing.lives import Life
from checks.contracts import Case, Contract, Facts, Rules

KILLS, STEPS, EVERY = 20, 40, 5  # of the lab's text


def draw(ranks: int) -> Callable[[random.Random], list[Case]]:
    """Twenty kills as the lab's text says; then another, shorter training."""

    def draw(rng: random.Random) -> list[Case]:
        many = {"steps": STEPS, "every": EVERY, "kills": KILLS, "trouble": "yes" if ranks > 1 else "no"}
        every = rng.choice((2, 3, 4, 7))
        few = {"steps": every * rng.randint(3, 4), "every": every, "kills": 2, "trouble": "no"}
        return [{"ranks": 1, "training ranks": ranks} | how | {"seed": rng.getrandbits(30)} for how in (many, few)]

    return draw


def _scene(name: str) -> Callable[..., None]:
    def scene(case: Case, watch: Any, facts: Facts) -> None:
        from checks.checkpointing import kills

        with watch.step(name):  # (whether it uses the course's own code; it runs in processes of its own)
            pass
        facts |= kills.lives(watch.answers[name], case)

    return scene


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    found: dict[str, Any] = {"killed": f"{case['kills']} times", "steps": case["steps"]}
    lives = [told["lives"] for told in world[0]["killed"]]
    done = repeated = 0
    for told in lives:
        steps = [note["number"] for note in Life(**told[0]).of("step")]
        repeated += max(0, done - steps[0]) if steps else 0
        done = max([done, *(note["number"] + 1 for life in told for note in Life(**life).of("done"))])
    if case["training ranks"] == 1:
        found["done again"] = f"{repeated} steps (at most {case['every'] * case['kills']})"
    else:  # how far a rank comes until it notices that the other is gone is not the same each time
        found["damaged checkpoints passed over"] = sum(bool(told["trouble"]) for told in world[0]["killed"])
    return found | {"final state": "bit for bit that of a run without a break"}


def contract(exercise: str, name: str, ranks: int) -> Contract:
    """Of the exercise whose answer has this name."""
    return Contract(
        name=f"checkpointing.{exercise}",
        rules={name: Rules()},
        draw=draw(ranks),
        scene=_scene(name),
        judge=judge,
        mistakes=(("value:*", "{}"),),
        figures=figures,
    )


ALONE, ON_RANKS = contract("resumed", "train", 1), contract("on_ranks", "train_on_ranks", 2)
