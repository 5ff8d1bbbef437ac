"""The exercises of lab 02: stages on GPUs, a GPipe step, the 1F1B schedule, a 1F1B step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from utils.checks import Wrong, exercise, run, run_cases
from utils.checks.model_parallelism import probes
from utils.checks.model_parallelism.probes import GPIPE, ONE_F_ONE_B, Case

# --- 1: balanced stages ----------------------------------------------------------------------------------------

COSTS: tuple[tuple[tuple[int, ...], int], ...] = (  # costs of the pieces, stages
    ((5, 5, 5, 5), 2),
    ((7, 2, 2, 2, 2, 2, 2, 7), 3),
    ((1, 1, 1, 1, 1, 1, 1, 20), 2),
    ((4, 5, 5, 5, 9, 6), 3),
    ((5, 8, 3, 3, 2, 3, 4, 8), 4),
    ((4, 0, 0, 4, 0, 4, 0), 3),
    ((10, 40, 20, 30, 50), 5),
    ((3, 1, 4, 1, 5, 9, 2, 6), 1),
    ((2, 6, 4, 4, 1, 8, 3, 3, 5, 2, 7, 4), 4),
)
MODELS = (("a small GPT", 3), ("a funnel", 4), ("two kinds of numbers", 2), ("a funnel", 1))


@exercise(title="Balanced stages", difficulty=1, minutes=15)
def balanced_stages(balance: Any, make_stages: Any) -> dict[str, Any]:
    """Judge ``balance(costs, p)``, pieces for each stage, and ``make_stages(pieces, p)``, which uses it."""
    counts = run_cases(balance, [(list(costs), p) for costs, p in COSTS])
    for (costs, p), found in zip(COSTS, counts, strict=True):
        _judge_counts(costs, p, found, equal=_about_equal(counts))
    largest = run(probes.stages, make_stages, MODELS, smallest_largest)
    return {
        "lists of costs": len(COSTS),
        "models": len(MODELS),
        "largest stage of the small GPT on 3 GPUs": f"{largest[0]:,} bytes",
    }


def _about_equal(all_counts: Sequence[Any]) -> bool:
    """Does every stage get the same number of pieces, as nearly as possible, whatever they cost?"""
    try:
        return all(max(counts) - min(counts) <= 1 for counts in all_counts)
    except (TypeError, ValueError):
        return False


def _judge_counts(costs: Sequence[int], p: int, counts: Any, equal: bool) -> None:
    call = f"balance({list(costs)}, {p})"
    if not isinstance(counts, list | tuple) or not all(type(count) is int for count in counts):
        raise Wrong(f"{call} is a list with the number of pieces of each stage", measured=counts)
    if len(counts) != p:
        raise Wrong(f"{call} has one number for each stage", measured=counts, expected=f"{p} numbers")
    if sum(counts) != len(costs):
        raise Wrong(
            f"{call} loses pieces, or takes some twice: the numbers add up to the number of pieces",
            measured=f"{counts}, the sum is {sum(counts)}",
            expected=len(costs),
        )
    if min(counts) < 1:
        raise Wrong(f"{call} leaves a GPU without work: every stage has at least one piece", measured=counts)
    sums = stage_costs(costs, counts)
    if max(sums) > smallest_largest(costs, p):
        why = "equal numbers of pieces are not equal costs" if equal else "another cut is better"
        raise Wrong(
            f"{call} gives {counts}, stages that cost {sums}: {why}; the largest stage sets the pace",
            measured=f"largest {max(sums)}",
            expected=f"largest {smallest_largest(costs, p)}",
        )


def stage_costs(costs: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The cost of each stage."""
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def smallest_largest(costs: Sequence[int], p: int) -> int:
    """The smallest possible cost of the largest of ``p`` stages, none of them empty."""
    best: list[float] = [sum(costs[:end]) for end in range(len(costs) + 1)]  # of the first pieces, in one stage
    best[0] = float("inf")
    for _ in range(p - 1):
        best = [
            min((max(best[cut], sum(costs[cut:end])) for cut in range(end)), default=float("inf"))
            for end in range(len(costs) + 1)
        ]
    return int(best[-1])


# --- 2: GPipe --------------------------------------------------------------------------------------------------

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
    return run(probes.steps, answer, kind, cases, timeout=25)


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


# --- 3: the order of 1F1B --------------------------------------------------------------------------------------

PIPELINES = ((3, 4), (4, 8), (2, 5), (4, 2), (5, 5), (8, 16), (2, 2), (1, 3))  # stages, micro-batches


def _with_warm_up(first: int, m: int) -> list[str]:
    first = min(first, m)
    steady = [item for i in range(m - first) for item in (f"F{first + i}", f"B{i}")]
    return [f"F{k}" for k in range(first)] + steady + [f"B{k}" for k in range(m - first, m)]


SCHEDULE_MISTAKES: dict[str, Callable[[int, int, int], list[str]]] = {
    "That is GPipe: all forwards first, so all m micro-batches wait on the GPU": lambda s, p, m: (
        [f"F{k}" for k in range(m)] + [f"B{k}" for k in range(m)]
    ),
    "That is GPipe, backwards from the last micro-batch to the first: all m wait on the GPU": lambda s, p, m: (
        [f"F{k}" for k in range(m)] + [f"B{k}" for k in reversed(range(m))]
    ),
    "One micro-batch after the other has no two stages at work at the same time": lambda s, p, m: _with_warm_up(0, m),
    "The warm-up is as long as the way to the LAST stage, p − 1 − stage; yours is as long as the way from the first": (
        lambda s, p, m: _with_warm_up(s, m)
    ),
    "One forward too many in the warm-up: it takes the memory of one micro-batch more than needed": (
        lambda s, p, m: _with_warm_up(p - s, m)
    ),
    "One forward too few in the warm-up: the stage waits for the first gradient with nothing to do": (
        lambda s, p, m: _with_warm_up(max(0, p - 2 - s), m)
    ),
    "All stages have the warm-up of the first one: later stages get their first gradient back sooner": (
        lambda s, p, m: _with_warm_up(p - 1, m)
    ),
}


@exercise(title="The order of 1F1B", difficulty=1, minutes=10)
def order_1f1b(schedule_1f1b: Any) -> dict[str, Any]:
    """Judge ``schedule_1f1b(stage, p, m)``: a list such as ["F0", "F1", "B0", "F2", "B1", "B2"]."""
    cases = [(stage, p, m) for p, m in PIPELINES for stage in range(p)]
    found = run_cases(schedule_1f1b, cases)
    for case, items in zip(cases, found, strict=True):
        _judge_items(case, items)
    right = [probes.schedule(*case) for case in cases]
    found = [list(items) for items in found]
    if found != right:
        raise _wrong_order(cases, found, right)
    times = {(p, m): play([probes.schedule(stage, p, m) for stage in range(p)]).end for p, m in PIPELINES}
    return {
        "schedules": len(cases),
        "4 stages and 8 micro-batches take": f"{times[4, 8]} units of time (one after the other: {3 * 4 * 8})",
    }


def _judge_items(case: tuple[int, int, int], items: Any) -> None:
    call, m = f"schedule_1f1b{case}", case[2]
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise Wrong(f"{call} is a list of texts such as 'F0' and 'B0'", measured=items)
    wanted = {f"{letter}{k}" for letter in "FB" for k in range(m)}
    if strange := [item for item in items if item not in wanted]:
        raise Wrong(f"{call} has micro-batches 0 to {m - 1} only", measured=strange[0])
    if missing := sorted(wanted - set(items)):
        raise Wrong(f"{call} leaves something out", measured=f"no {', '.join(missing)} in {list(items)}")
    if len(items) != len(wanted):
        raise Wrong(f"{call} does something twice", measured=list(items))


def _wrong_order(cases: Sequence[tuple[int, int, int]], found: list[list[str]], right: list[list[str]]) -> Wrong:
    where = next(i for i, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1])
    call = f"schedule_1f1b{cases[where]}"
    for sentence, mistake in SCHEDULE_MISTAKES.items():
        if found == [mistake(*case) for case in cases]:
            return Wrong(f"{sentence}. See {call}", measured=found[where], expected=right[where])
    for p, m in PIPELINES:
        lists = [items for case, items in zip(cases, found, strict=True) if case[1:] == (p, m)]
        if stuck := play(lists).stuck:
            return Wrong(f"with {p} stages and {m} micro-batches nobody can go on: {stuck}.")
    return Wrong(f"{call} is another order", measured=found[where], expected=right[where])


class Played:
    """What became of a schedule: when its last pass ended, or who waits for what.

    Args:
        end: units of time; a forward takes 1, a backward 2.
        stuck: empty, or a text for a sentence.
    """

    def __init__(self, end: int, stuck: str = "") -> None:
        self.end, self.stuck = end, stuck


def play(lists: Sequence[Sequence[str]]) -> Played:
    """Run schedules, one list for each stage, each stage in its own order. Copies take no time."""
    todo = [list(items) for items in lists]
    done: dict[tuple[int, str], int] = {}
    free = [0] * len(todo)
    moved = True
    while moved:
        moved = False
        for stage, items in enumerate(todo):
            while items and all(need in done for need in _needs(stage, items[0], len(todo))):
                item = items.pop(0)
                start = max([free[stage], *(done[need] for need in _needs(stage, item, len(todo)))])
                free[stage] = done[stage, item] = start + (1 if item[0] == "F" else 2)
                moved = True
    waiting = []
    for stage, items in enumerate(todo):
        if items:
            other, need = next(need for need in _needs(stage, items[0], len(todo)) if need not in done)
            waiting.append(f"stage {stage} is at {items[0]} and waits for {need} of stage {other}")
    return Played(max(free), ", ".join(waiting))


def _needs(stage: int, item: str, p: int) -> list[tuple[int, str]]:
    """What must have happened before a stage can do ``item``: (stage, item)."""
    if item[0] == "F":
        return [(stage - 1, item)] if stage > 0 else []
    return [(stage, f"F{item[1:]}"), *([(stage + 1, item)] if stage < p - 1 else [])]


# --- 4: 1F1B ---------------------------------------------------------------------------------------------------

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
    gpipe_held = run(probes.gpipe_held, case)
    shown = _shown(ONE_F_ONE_B_CASES, figures)
    shown["activations on GPU 0 at its peak"] += f" (GPipe: {gpipe_held:.1f})"
    return shown
