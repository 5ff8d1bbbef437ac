"""Exercise 4: ``train_and_log(model, optimizer, batches)``, which returns the means of what a layer puts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.gil_and_refcounting import leaks
from checks.plain import number

PRELOAD = leaks.PRELOAD
WHAT_STAYS = "each step leaves the activations of the hidden layer behind"


def scene(case: Case, watch: Any, facts: Facts) -> None:
    from checks.gil_and_refcounting import training_loops as loops

    facts["may be alive"] = loops.rehearse(case, _train)
    host = loops.Setting(case, on_gpu=False)
    facts["means"] = _train(host)
    facts["right"] = host.state()
    one, looks = loops.Setting(case), loops.Looks()
    one.model[1].eval()  # an activation is the same in both modes
    one.optimizer.register_step_post_hook(looks.look)
    with loops.counted(watch.answers["train_and_log"].function) as counts:
        result = watch.call("train_and_log", model=one.model, optimizer=one.optimizer, batches=one.batches)
        facts["kind"] = _kind(result)
        facts["result"] = [float(value) for value in result] if facts["kind"] == "numbers" else None
        del result
        looks.look()
    facts |= counts | {"alive": looks.found, "after": one.state()}


def _kind(result: Any) -> str:
    if not isinstance(result, list):
        return f"a {type(result).__name__}"
    return next(
        (f"a list with a {type(one).__name__}" for one in result if not isinstance(number(one), float)), "numbers"
    )


def _train(one: Any, looks: Any = None) -> dict[str, list[float]]:
    """The means of what each layer puts out in each step, and of what model[1] puts out after each."""
    import torch

    if looks:
        one.optimizer.register_step_post_hook(looks.look)
    found: dict[str, list[float]] = {"model[0]": [], "model[1]": [], "model[2]": []}
    handles = [
        layer.register_forward_hook(lambda _, __, out, means=means: means.append(out.mean().item()))
        for layer, means in zip(one.model, found.values(), strict=True)
    ]
    found["later"] = []
    for x, y in one.batches:
        one.step(x, y)
        with torch.no_grad():  # (``forward`` runs no hooks)
            found["later"].append(one.model[1].forward(one.model[0].forward(x)).mean().item())
    for handle in handles:
        handle.remove()
    return found


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    (facts,) = world
    yield from leaks.judge_growth(facts, 2, WHAT_STAYS)
    yield from leaks.judge_training(facts, case["steps"], case["type"])
    right, what = facts["means"]["model[1]"], "the list of means of what model[1] puts out"
    if facts["result"] is None:
        words = "train_and_log returns a list of plain numbers, floats: .item() makes one of a tensor"
        yield Broken("value:5 kind", words, facts["kind"])
    elif len(facts["result"]) != len(right):
        yield Broken("value:5 number", "the list has one mean for each step", len(facts["result"]), len(right))
    else:
        means, of_layer = facts["means"], "is that of what model[{}] puts out"
        guesses = {of_layer.format(layer): means[f"model[{layer}]"] for layer in (0, 2)}
        guesses["is that after the steps: take what the training's own forward puts out"] = means["later"]
        yield from leaks.compare_numbers("value:6", what, facts["result"], right, case["type"], guesses)


CONTRACT = Contract(
    name="gil_and_refcounting.hidden_means",
    rules={"train_and_log": Rules(changes=leaks.TRAINED)},
    draw=leaks.cases,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:model*.requires_grad", "{}"),
        *((f"value:{n}*", "{}") for n in range(2)),
        (
            "state:*.hooks.added",
            "the model still has a hook when the function returns, and goes on collecting: handle.remove()",
        ),
        (
            "state:*.hooks.removed",
            "{}. Take away your own hook only: handle.remove()",
        ),
        *((f"value:{n}*", "{}") for n in range(2, 7)),
    ),
    figures=leaks.figures,
)
