"""Exercise 3: ``schedule_1f1b(stage, p, m)``: 1F1B, what is often taken for it, and who waits for whom."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules


def right_schedule(stage: int, p: int, m: int) -> list[str]:
    """1F1B: what a stage does, in order. (Narayanan and others: PipeDream, SOSP 2019; with a flush: SC 2021.)"""
    first = min(p - 1 - stage, m)
    steady = [f"{letter}{k}" for i in range(m - first) for letter, k in (("F", first + i), ("B", i))]
    return [f"F{k}" for k in range(first)] + steady + [f"B{k}" for k in range(m - first, m)]


SHORT = 12  # passes that a sentence can show
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


def draw(rng: random.Random) -> list[Case]:
    pipelines = [*PIPELINES, *((rng.randint(1, 9), rng.randint(1, 20)) for _ in range(4))]
    many = rng.randint(10, 14)
    pipelines += [(many, rng.randint(21, 60)), (many, rng.randint(101, 130))]
    return [{"ranks": 1, "pipelines": [list(one) for one in pipelines], "seed": rng.getrandbits(30)}]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    """Every list is asked for, used up, and asked for again, in any order. (And once more: an odd number of calls.)"""
    calls = [(stage, p, m) for p, m in case["pipelines"] for stage in range(p) for _ in range(2)]
    facts["lists"] = [{} for _ in calls]
    with watch.step("schedule_1f1b"):
        for number in random.Random(case["seed"]).sample(range(len(calls)), len(calls)):
            items = watch.answers["schedule_1f1b"](*calls[number])
            kind = type(items).__name__
            right = isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)
            place = number - number % 2  # what is asked for first stands before what is asked for again
            facts["lists"][place + bool(facts["lists"][place])] = {
                "case": list(calls[number]),
                "items": list(items) if right else None,
                "kind": kind,
            }
            if isinstance(items, list):
                items.clear()
        watch.answers["schedule_1f1b"](*calls[0])  # so that a switch which each call turns is not where it was


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    found = world[0]["lists"]
    for one in found[::2]:
        yield from _items(tuple(one["case"]), one)
    if any(one["items"] is None for one in found):
        return
    first, again = ([one["items"] for one in found[start::2]] for start in (0, 1))
    cases = [tuple(one["case"]) for one in found[::2]]
    right = [right_schedule(*one) for one in cases]
    if first != right:
        yield _wrong_order(case, cases, first, right)
    elif first != again:
        where = next(i for i, pair in enumerate(zip(first, again, strict=True)) if pair[0] != pair[1])
        words = f"schedule_1f1b{cases[where]} gives another list when it is asked again: make a new list for each call"
        yield Broken("value:3 again", words, again[where], first[where])


def _items(case: tuple[int, ...], found: Facts) -> Iterator[Broken]:
    call, m, items = f"schedule_1f1b{case}", case[2], found["items"]
    if items is None:
        yield Broken("returns:kind", f"{call} is a list of texts such as 'F0' and 'B0'", f"a {found['kind']}")
        return
    wanted = {f"{letter}{k}" for letter in "FB" for k in range(m)}
    if strange := [item for item in items if item not in wanted]:
        yield Broken("value:1 strange", f"{call} knows F0 to F{m - 1} and B0 to B{m - 1} only", strange[0])
    elif missing := sorted(wanted - set(items)):
        yield Broken("value:1 missing", f"{call} leaves something out", f"no {', '.join(missing)} in {items}")
    elif len(items) != len(wanted):
        yield Broken("value:1 twice", f"{call} does something twice", str(items))


def _wrong_order(
    case: Case, cases: Sequence[tuple[int, ...]], found: list[list[str]], right: list[list[str]]
) -> Broken:
    where = next(i for i, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1])
    call, seen = f"schedule_1f1b{cases[where]}", {"measured": found[where], "expected": right[where]}
    pairs = enumerate(zip(found[where], right[where], strict=False))
    place = next((i for i, pair in pairs if pair[0] != pair[1]), len(found[where]))
    for sentence, mistake in SCHEDULE_MISTAKES.items():
        if found == [mistake(*one) for one in cases]:
            return Broken("value:2 order", f"{sentence}. See {call}", **seen)
    for p, m in case["pipelines"]:
        lists = [items for one, items in zip(cases, found, strict=True) if one[1:] == (p, m)][:p]
        if stuck := play(lists).stuck:
            return Broken("value:2 stuck", f"with {p} stages and {m} micro-batches nobody can go on: {stuck}")
    if place > SHORT:  # (what is shown of a long list is its beginning)
        seen = {name: one[place - 2 : place + 6] for name, one in seen.items()}
        return Broken("value:2 order", f"{call} is another order: from place {place - 2} on", **seen)
    return Broken("value:2 order", f"{call} is another order", **seen)


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


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    lists = played[0][1][0]["lists"]
    end = play([right_schedule(stage, 4, 8) for stage in range(4)]).end
    return {
        "schedules": len(lists) // 2,
        "4 stages and 8 micro-batches take": f"{end} units of time (one after the other: {3 * 4 * 8})",
    }


CONTRACT = Contract(
    name="model_parallelism.order_1f1b",
    rules={"schedule_1f1b": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("around:*", "{}"), ("returns:*", "{}"), *((f"value:{number} *", "{}") for number in range(1, 4))),
    figures=figures,
)
