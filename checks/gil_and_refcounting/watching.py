"""Exercise 3: ``train_and_watch(model, optimizer, batches, watched)``, which returns a mean loss and keeps no graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.gil_and_refcounting import leaks
from checks.plain import number

PRELOAD = leaks.PRELOAD
WHAT_STAYS = "each step leaves the graph of a loss behind, with its activations"


def scene(case: Case, watch: Any, facts: Facts) -> None:
    from checks.gil_and_refcounting import training_loops as loops

    facts["may be alive"] = loops.rehearse(case, _train)
    host = loops.Setting(case, on_gpu=False)
    facts["losses"] = _train(host)
    facts["right"] = host.state()
    one, looks = loops.Setting(case), loops.Looks()
    one.optimizer.register_step_post_hook(looks.look)
    with loops.counted(watch.answers["train_and_watch"].function) as counts:
        result = watch.call(
            "train_and_watch", model=one.model, optimizer=one.optimizer, batches=one.batches, watched=one.watched
        )
        found = number(result)
        facts["result"] = found if isinstance(found, float) else f"a {type(result).__name__}"
        del result
        looks.look()
    facts |= counts | {"alive": looks.found, "after": one.state()}


def _train(one: Any, looks: Any = None) -> dict[str, list[float]]:
    """The losses of this loop: watched after each step, before it, and those of the training."""
    import torch
    from torch.nn.functional import mse_loss

    if looks:
        one.optimizer.register_step_post_hook(looks.look)
    found: dict[str, list[float]] = {"after": [], "before": [], "training": []}
    for x, y in one.batches:
        for when in ("before", "after"):
            if when == "after":
                found["training"].append(one.step(x, y))
            with torch.no_grad():
                found[when].append(mse_loss(one.model(one.watched[0]), one.watched[1]).item())
    return found


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    (facts,) = world
    yield from leaks.judge_growth(facts, 2, WHAT_STAYS)
    yield from leaks.judge_training(facts, case["steps"], case["type"])
    if isinstance(facts["result"], str):
        words = "train_and_watch returns a plain number, a float: .item() makes one of a tensor"
        yield Broken("value:5 kind", words, facts["result"])
        return
    losses, n = facts["losses"], case["steps"]
    guesses = {
        "is the sum: divide by the number of batches": sum(losses["after"]),
        "is the last one: return the mean of all": losses["after"][-1],
        "is that before the steps: look at the watched batch after each step": sum(losses["before"]) / n,
        "is that of the training: look at the watched batch": sum(losses["training"]) / n,
    }
    guesses = guesses if n > 1 else {}
    what = "the mean of the watched losses"
    yield from leaks.compare_numbers("value:6", what, facts["result"], sum(losses["after"]) / n, case["type"], guesses)


CONTRACT = Contract(
    name="gil_and_refcounting.watched_loss",
    rules={"train_and_watch": Rules(changes=leaks.TRAINED)},
    draw=leaks.cases,
    scene=scene,
    judge=judge,
    mistakes=(("state:model*.requires_grad", "{}"), *((f"value:{n}*", "{}") for n in range(7))),
    figures=leaks.figures,
)
