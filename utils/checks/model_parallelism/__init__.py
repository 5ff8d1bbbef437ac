"""The exercises of this lab: stages on GPUs, a GPipe step, the 1F1B schedule, a 1F1B step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from utils.checks.framework import exercise
from utils.checks.model_parallelism.balancing import (
    COSTS,
    MODELS,
    about_equal,
    judge_counts,
    smallest_largest,
    stages_of_models,
)
from utils.checks.model_parallelism.ideal_stages import GPIPE, ONE_F_ONE_B, Case
from utils.checks.model_parallelism.pipeline_steps import gpipe_held, judged_steps
from utils.checks.model_parallelism.schedules import PIPELINES, judge_items, play, right_schedule, wrong_order
from utils.checks.points import passed
from utils.checks.sandbox import run, run_cases


@exercise(title="Balanced stages", difficulty=1, minutes=15, parts={"balance": 1, "make_stages": 1})
def balanced_stages(balance: Any, make_stages: Any) -> dict[str, Any]:
    """Judge ``balance(costs, p)``, pieces for each stage, and ``make_stages(pieces, p)``, which uses it."""
    counts = run_cases(balance, [(list(costs), p) for costs, p in COSTS])
    for (costs, p), found in zip(COSTS, counts, strict=True):
        judge_counts(costs, p, found, equal=about_equal(counts))
    passed("balance")
    largest = run(stages_of_models, make_stages, MODELS, smallest_largest)
    return {
        "lists of costs": len(COSTS),
        "models": len(MODELS),
        "largest stage of the small GPT on 3 GPUs": f"{largest[0]:,} bytes",
    }


GPIPE_CASES = (
    Case(4, 8, 512),
    Case(2, 4, 256),
    Case(3, 4, 10),  # 3, 3, 2, 2: the last micro-batches are smaller
    Case(4, 6, 8, classes=True),  # chunk(6) makes four pieces of it
    Case(3, 1, 64),
    Case(1, 3, 192),
    Case(4, 12, 768, classes=True),
)


@exercise(title="A GPipe step", difficulty=2, minutes=20)
def gpipe(gpipe_step: Any) -> dict[str, Any]:
    """Judge ``gpipe_step(stages, batch, targets, loss_fn, micro_batches)``."""
    figures = _steps(gpipe_step, GPIPE, GPIPE_CASES)
    return _shown(GPIPE_CASES, figures)


def _steps(answer: Any, kind: str, cases: Sequence[Case]) -> list[dict[str, Any]]:
    return run(judged_steps, answer, kind, cases, timeout=60)


def _shown(cases: Sequence[Case], figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the case that is told of in the lab: 4 GPUs, 8 micro-batches."""
    which = next(i for i, case in enumerate(cases) if (case.p, case.m) == (4, 8))
    case, told = cases[which], figures[which]
    return {
        "cases": len(cases),
        f"transfers with {case.p} GPUs and {case.m} micro-batches": told["transfers"],
        "bubble": f"{told['bubble']:.3f} (formula {case.bubble:.3f})",
        "activations on GPU 0 at its peak": f"of {told['held']:.1f} micro-batches",
    }


@exercise(title="The order of 1F1B", difficulty=1, minutes=10)
def order_1f1b(schedule_1f1b: Any) -> dict[str, Any]:
    """Judge ``schedule_1f1b(stage, p, m)``: a list such as ["F0", "F1", "B0", "F2", "B1", "B2"]."""
    cases = [(stage, p, m) for p, m in PIPELINES for stage in range(p)]
    found = run_cases(schedule_1f1b, cases)
    for case, items in zip(cases, found, strict=True):
        judge_items(case, items)
    right = [right_schedule(*case) for case in cases]
    found = [list(items) for items in found]
    if found != right:
        raise wrong_order(cases, found, right)
    times = {(p, m): play([right_schedule(stage, p, m) for stage in range(p)]).end for p, m in PIPELINES}
    return {
        "schedules": len(cases),
        "4 stages and 8 micro-batches take": f"{times[4, 8]} units of time (one after the other: {3 * 4 * 8})",
    }


ONE_F_ONE_B_CASES = (
    Case(4, 8, 512),
    Case(2, 4, 256),
    Case(3, 4, 10),
    Case(3, 2, 128, classes=True),  # fewer micro-batches than stages
    Case(1, 3, 192),
    Case(4, 12, 768, classes=True),
)


@exercise(title="A 1F1B step", difficulty=3, minutes=25)
def one_f_one_b(one_f_one_b_step: Any) -> dict[str, Any]:
    """Judge ``one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches)``."""
    figures = _steps(one_f_one_b_step, ONE_F_ONE_B, ONE_F_ONE_B_CASES)
    case = next(case for case in ONE_F_ONE_B_CASES if (case.p, case.m) == (4, 8))
    held = run(gpipe_held, case)
    shown = _shown(ONE_F_ONE_B_CASES, figures)
    shown["activations on GPU 0 at its peak"] += f" (GPipe: {held:.1f})"
    return shown
