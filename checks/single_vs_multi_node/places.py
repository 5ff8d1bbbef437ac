"""Exercise 1: ``rank_of(node_rank, local_rank, counts)`` and ``coordinates_of(rank, counts)``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.plain import from_array, number

Counts = list[int]


def draw(rng: random.Random) -> list[Case]:
    """Clusters: as many processes on each node, one node, one process, more than a byte counts, and drawn ones."""
    clusters = [[3, 3], [3, 1, 2], [1], [4], [1, 1, 1], [17] * 18]
    drawn = [[rng.randint(1, 9) for _ in range(rng.randint(2, 9))] for _ in range(4)]
    clusters += [counts for one in drawn for counts in (one, rng.sample(one, len(one)))]  # and in another order
    return [{"ranks": 1, "clusters": clusters, "seed": rng.getrandbits(30)}]


def places(counts: Counts) -> list[tuple[int, int]]:
    """Node rank and local rank of every rank."""
    return [(node, local) for node, count in enumerate(counts) for local in range(count)]


def like_cards(counts: Counts) -> list[tuple[int, int]]:
    """The same, if the ranks were dealt out to the nodes like cards."""
    return sorted(places(counts), key=lambda place: place[::-1])


def _plain(result: Any) -> Any:
    """Numbers as they are, of other things their kind."""
    result = from_array(result)
    if isinstance(result, tuple | list):
        return [_plain(one) for one in result][:9]
    found = number(result)
    return f"a {type(result).__name__}" if found is None else found


def scene_of(function: str) -> Callable[..., None]:
    def scene(case: Case, watch: Any, facts: Facts) -> None:
        facts["results"], chance, given = [], random.Random(case["seed"]), []
        for counts in case["clusters"]:
            given[:] = counts  # the same list: what counts is what is in it
            with watch.step(function, counts=given):
                answer = watch.answers[function].function
                calls = places(counts) if function == "rank_of" else [(rank,) for rank in range(sum(counts))]
                found = {call: answer(*call, given) for call in chance.sample(calls, len(calls))}  # in any order
            facts["results"].append([_plain(found[call]) for call in calls])

    return scene


_OTHER = "this is right for another process than the one asked about"
# What a mistake gives, by its sentence; of all places of a cluster, in order.
_RANKS: dict[str, Callable[[int, int, Counts], int]] = {
    "the launcher counts node by node; you deal the ranks out to the nodes like cards": lambda n, k, c: like_cards(
        c
    ).index((n, k)),
    "nodes need not be alike: add up how many processes the nodes before have": lambda n, k, c: n * c[n] + k,
    "nodes need not be alike, and not all are like the first": lambda n, k, c: n * c[0] + k,
    "multiply by the number of processes on a node, not by the number of nodes": lambda n, k, c: n * len(c) + k,
    "node rank and local rank are swapped": lambda n, k, c: sum(c[:k]) + n,
    "ranks are counted from 0, yours from 1": lambda n, k, c: sum(c[:n]) + k + 1,
    "the local rank alone is not enough: nodes before this one have processes too": lambda n, k, c: k,
    "this node's own processes are not before it": lambda n, k, c: sum(c[: n + 1]) + k,
}
_COORDINATES: dict[str, Callable[[int, Counts], tuple[int, int, int]]] = {
    "node rank and local rank are swapped in what you return": lambda r, c: (*places(c)[r][::-1], sum(c)),
    "the world size counts processes, yours counts nodes": lambda r, c: (*places(c)[r], len(c)),
    "nodes need not be alike, and not all are like the first": lambda r, c: (*divmod(r, c[0]), sum(c)),
    "divide by the number of processes on a node, not by the number of nodes": lambda r, c: (
        *divmod(r, len(c)),
        sum(c),
    ),
    "the launcher counts node by node; you deal the ranks out like cards": lambda r, c: (*like_cards(c)[r], sum(c)),
    "node ranks and local ranks are counted from 0, yours from 1": lambda r, c: (
        places(c)[r][0] + 1,
        places(c)[r][1] + 1,
        sum(c),
    ),
}


def judge_ranks(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    calls = [[(*place, counts) for place in places(counts)] for counts in case["clusters"]]
    right = [list(range(sum(counts))) for counts in case["clusters"]]
    yield from _judge("rank_of", calls, world[0]["results"], right, _RANKS)


def judge_coordinates(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    calls = [[(rank, counts) for rank in range(sum(counts))] for counts in case["clusters"]]
    right = [[[*place, sum(counts)] for place in places(counts)] for counts in case["clusters"]]
    yield from _judge("coordinates_of", calls, world[0]["results"], right, _COORDINATES)


def _judge(
    name: str, calls: list[list[Any]], results: list[list[Any]], right: list[list[Any]], mistakes: Any
) -> Iterator[Broken]:
    """The first call that is wrong, with the mistake that gives all results, if there is one."""
    each = [pair for groups in zip(calls, results, right, strict=False) for pair in zip(*groups, strict=False)]
    for call, got, value in each:
        if got == value and not _floats(got):
            continue
        shown = f"{name}({', '.join(map(str, call))})"
        if _floats(got):
            words = (
                f"{shown} is no whole number but a float, as / gives it: // gives a whole number, and so does int(…)"
            )
            yield Broken("value:kind", words, str(got), str(value))
        elif isinstance(value, list) and not (isinstance(got, list) and len(got) == 3):
            words = f"{name} returns three numbers: node rank, local rank, world size"
            yield Broken("value:kind", words, str(got)[:60], str(value))
        elif not all(isinstance(one, int) for one in (got if isinstance(value, list) else [got])):
            words = (
                f"{name} returns {'three whole numbers' if isinstance(value, list) else 'one whole number, the rank'}"
            )
            yield Broken("value:kind", f"{words}. This is {shown}", str(got)[:60], str(value))
        else:
            words = next((why for why, formula in mistakes.items() if _gives(formula, each)), _OTHER)
            if words == _OTHER and isinstance(value, list) and got[:2] == value[:2]:
                words = "the place is right, the world size is not: it is the number of processes on all nodes"
            yield Broken("value:places", f"{words}. This is {shown}", str(got)[:60], str(value))
        return


def _floats(got: Any) -> bool:
    return isinstance(got, float) or (isinstance(got, list) and any(isinstance(one, float) for one in got))


def _gives(formula: Callable[..., Any], each: Sequence[Any]) -> bool:
    """Whether a mistake gives what was got, wherever it can be computed."""
    for call, got, _ in each:
        try:
            found = formula(*call)
        except (IndexError, ValueError):
            return False
        if (list(found) if isinstance(found, tuple) else found) != got:
            return False
    return True


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    clusters = played[0][0]["clusters"]
    return {"clusters": len(clusters), "ranks there and back": sum(map(sum, clusters))}


def _contract(function: str, judge: Any) -> Contract:
    return Contract(
        name=f"single_vs_multi_node.{function}",
        rules={function: Rules()},
        draw=draw,
        scene=scene_of(function),
        judge=judge,
        mistakes=(
            ("state:counts*", f"{function} changes the list `counts`: whoever calls it still needs it"),
            ("value:*", "{}"),
        ),
        figures=figures,
    )


RANK_OF = _contract("rank_of", judge_ranks)
COORDINATES_OF = _contract("coordinates_of", judge_coordinates)
