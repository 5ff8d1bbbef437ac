"""Check of ``one_f_one_b_step``: 1F1B's order on every GPU, with gradients and loss of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise
from checks.labs.model_parallelism import steps
from checks.labs.model_parallelism.order import OFFICIAL as ORDER

WARM, SHARE = "min(p - 1 - stage, m)", " * len(ys[k]) / len(targets)"
OFFICIAL = Reference("model_parallelism", "one_f_one_b_step", {
    "each micro-batch counts fully: the loss is a mean, so weight it by the micro-batch's share of the samples":
        {SHARE: ""},
    "every micro-batch has the same weight, but they are not of the same size: weight each by its share of the samples":
        {SHARE: " / m"},
    "a stage's backward begins with ones: it needs the gradient that the next GPU has sent back":
        {'y.backward(receive(inbox.pop((i, f"B{k}")))': 'y.backward(torch.ones_like(receive(inbox.pop((i, f"B{k}"))))'},
    "the gradients that were there before the step are lost: add to them, as backward does":
        {"    inbox, kept, losses": "    [stage.zero_grad() for stage in stages]\n    inbox, kept, losses"},
    "the loss that comes back is that of the last micro-batch": {"sum(losses)": "losses[-1]"},
    "all forwards come first: that is GPipe": {WARM: "m"},
    "one micro-batch follows the other: all other GPUs have nothing to do": {WARM: "0"},
    "the warm-up is too long: one more micro-batch waits on the GPU than has to": {WARM: "min(p - stage, m)"},
})  # fmt: skip
WAITS = (
    "the bubble is too large: a plain .to() keeps both GPUs waiting for each other, and work that is launched late "
    "begins late: send on streams of their own, as soon as there is something to send"
)


@exercise(OFFICIAL, steps.CASES, title="A 1F1B step", difficulty=3, minutes=25)
def one_f_one_b(case: dict[str, Any], one_f_one_b_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches)``."""
    (schedule,) = ORDER.functions()
    most = min(case["stages"], case["micro_batches"]) + 0.9

    def order(stage: int, p: int, m: int) -> str:
        return "".join(item[0] for item in schedule(stage, p, m))

    return steps.play(case, one_f_one_b_step, order, WAITS, most)
