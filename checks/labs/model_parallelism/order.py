"""Check of ``schedule_1f1b``: one forward, one backward in turns, after a warm-up, for each stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of

WARM, COOL = "min(p - 1 - stage, m)", "range(m - warm_up, m)"
OFFICIAL = Reference("model_parallelism", "schedule_1f1b", {
    "that is GPipe: all forwards come first, and all m micro-batches wait on the GPU": {WARM: "m"},
    "there is no warm-up: one micro-batch after the other leaves all other stages without work": {WARM: "0"},
    "the warm-up is as long as the way from the first stage: it is the way to the last one, p − 1 − stage":
        {WARM: "min(stage, m)"},
    "the warm-up has one forward too many: one more micro-batch waits on the GPU than has to":
        {WARM: "min(p - stage, m)"},
    "the warm-up has one forward too few: the stage waits for the first gradient with nothing to do":
        {WARM: "min(max(0, p - 2 - stage), m)"},
    "all stages have the warm-up of the first one: later ones get their first gradient sooner": {WARM: "min(p - 1, m)"},
    "the cool-down runs from the last micro-batch to the first: gradients come back in the order of the forwards":
        {COOL: f"reversed({COOL})"},
})  # fmt: skip
_SIZES = [(2, 3), (3, 4), (4, 8), (4, 2), (5, 5), (3, 11), (1, 3), (9, 30)]
CASES = [{"stage": stage, "p": p, "m": m} for p, m in _SIZES for stage in range(p)]


@exercise(OFFICIAL, CASES, title="The order of 1F1B", difficulty=1, minutes=10)
def order_1f1b(case: dict[str, Any], schedule_1f1b: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``schedule_1f1b(stage, p, m)``: a list such as ["F0", "F1", "B0", "F2", "B1", "B2"]."""
    items = schedule_1f1b(**case)
    texts = isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)
    refuse(not texts, 'the result is not a list of texts such as "F0" and "B0"', measured=kind_of(items))
    again = isinstance(items, list) and schedule_1f1b(**case) is items
    refuse(again, "a second call returns the same list: whoever uses it up finds it empty the next time")
    return {"the list": list(items)}


def shares(share: str, equal: str) -> dict[str, dict[str, str]]:
    """Mistakes of each step of a pipeline, by how it weights a micro-batch, and how it would if all were as large."""
    return {
        "each micro-batch counts fully: the loss is a mean, so weight it by the micro-batch's share of the samples":
            {share: ""},
        "every micro-batch has the same weight, but they are not of the same size: weight each by its share of the "
        "samples": {share: equal},
    }  # fmt: skip
