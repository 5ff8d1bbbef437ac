"""Schedules of a pipeline: 1F1B, what is often taken for it, and who waits for whom when a schedule is played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.verdicts import Wrong


def right_schedule(stage: int, p: int, m: int) -> list[str]:
    """1F1B: what a stage does, in order. (Narayanan and others: PipeDream, SOSP 2019; with a flush: SC 2021.)"""
    first = min(p - 1 - stage, m)
    steady = [f"{letter}{k}" for i in range(m - first) for letter, k in (("F", first + i), ("B", i))]
    return [f"F{k}" for k in range(first)] + steady + [f"B{k}" for k in range(m - first, m)]


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


def judge_items(case: tuple[int, int, int], items: Any) -> None:
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


def wrong_order(cases: Sequence[tuple[int, int, int]], found: list[list[str]], right: list[list[str]]) -> Wrong:
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
