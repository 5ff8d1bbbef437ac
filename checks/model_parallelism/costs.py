"""Exercise 1, its first part: ``balance(costs, p)``: the largest stage is as small as it can be."""

from __future__ import annotations

import numbers
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules

COSTS: tuple[tuple[tuple[int, ...], int], ...] = (  # costs of the pieces, stages
    ((5, 5, 5, 5), 2),
    ((7, 2, 2, 2, 2, 2, 2, 7), 3),
    ((1, 1, 1, 1, 1, 1, 1, 20), 2),
    ((20, 1, 1, 1, 1, 1, 1, 1), 2),  # the same costs in another order
    ((4, 5, 5, 5, 9, 6), 3),
    ((5, 8, 3, 3, 2, 3, 4, 8), 4),
    ((4, 0, 0, 4, 0, 4, 0), 3),
    ((10, 40, 20, 30, 50), 5),
    ((3, 1, 4, 1, 5, 9, 2, 6), 1),
    ((2, 6, 4, 4, 1, 8, 3, 3, 5, 2, 7, 4), 4),
)


def draw_costs(rng: random.Random) -> list[Case]:
    lists = [[list(costs), p] for costs, p in COSTS]
    for largest in (9, 40, 2**31, 2**55):  # so large that a float would round
        count = rng.randint(2, 11)
        lists.append([[rng.randint(0, largest) for _ in range(count)], rng.randint(1, count)])
    lists.append([[rng.randint(0, 99) for _ in range(14)], 8])
    costs, p = rng.choice(lists[:4])
    return [{"ranks": 1, "lists": [*lists, [costs, p]], "seed": 0}]


def scene_costs(case: Case, watch: Any, facts: Facts) -> None:
    facts["counts"], given = [], []
    for costs, p in case["lists"]:
        given[:] = costs  # the same list: what counts is what is in it
        counts = watch.call("balance", costs=given, p=p)
        facts["counts"].append(_plain(counts) if isinstance(counts, list | tuple) else repr(counts)[:60])
        if isinstance(counts, list):
            counts.clear()  # by whoever called; the list is asked for once more


def _plain(counts: Sequence[Any]) -> list[Any]:
    whole = [isinstance(count, numbers.Integral) and not isinstance(count, bool) for count in counts]
    return [int(count) if is_whole else repr(count)[:20] for count, is_whole in zip(counts, whole, strict=True)]


def judge_costs(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    found = world[0]["counts"]
    equal = _about_equal(found)
    for number, ((costs, p), counts) in enumerate(zip(case["lists"], found, strict=False)):
        for one in _counts(costs, p, counts, equal):
            yield one.at(call=number)


def _about_equal(all_counts: Sequence[Any]) -> bool:
    """Does every stage get the same number of pieces, as nearly as possible, whatever they cost?"""
    try:
        return all(max(counts) - min(counts) <= 1 for counts in all_counts)
    except (TypeError, ValueError):
        return False


def _counts(costs: Sequence[int], p: int, counts: Any, equal: bool) -> Iterator[Broken]:
    call = f"balance({list(costs)}, {p})"
    if not isinstance(counts, list | tuple) or not all(type(count) is int for count in counts):
        yield Broken("returns:kind", f"{call} is a list with the number of pieces of each stage", counts)
    elif len(counts) != p:
        yield Broken("value:length", f"{call} has one number for each stage", counts, f"{p} numbers")
    elif sum(counts) != len(costs):
        words = f"{call} loses pieces, or takes some twice: the numbers add up to the number of pieces"
        yield Broken("value:sum", words, f"{counts}, the sum is {sum(counts)}", len(costs))
    elif min(counts) < 1:
        yield Broken("value:empty", f"{call} leaves a GPU without work: every stage has at least one piece", counts)
    elif max(sums := stage_costs(costs, counts)) > (best := smallest_largest(costs, p)):
        why = "equal numbers of pieces are not equal costs" if equal else "another cut is better"
        words = f"{call} gives {counts}, stages that cost {sums}: {why}; the largest stage sets the pace"
        yield Broken("value:largest", words, f"largest {max(sums)}", f"largest {best}")


def stage_costs(costs: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The cost of each stage."""
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def smallest_largest(costs: Sequence[int], p: int) -> int:
    """The smallest possible cost of the largest of ``p`` stages, none of them empty."""
    best: list[int | None] = [None, *(sum(costs[: end + 1]) for end in range(len(costs)))]  # in one stage
    for _ in range(p - 1):
        best = [
            min((max(one, sum(costs[cut:end])) for cut in range(end) if (one := best[cut]) is not None), default=None)
            for end in range(len(costs) + 1)
        ]
    assert best[-1] is not None
    return best[-1]


def figures_costs(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {"lists of costs": len(played[0][1][0]["counts"])}


BALANCE = Contract(
    name="model_parallelism.balanced_stages, balance",
    rules={"balance": Rules()},
    draw=draw_costs,
    scene=scene_costs,
    judge=judge_costs,
    mistakes=(
        ("state:costs*", "balance changes the list of costs: whoever calls it may still need it"),
        ("around:*", "{}"),
    ),
    figures=figures_costs,
)
