"""What a wrong all-reduce of this lab has added up, read from its traces.

In a trace, element i of rank r starts as (FIRST + i) · BASE^r. A sum then has one digit for each rank, which tells how
often that rank's number is in it, and whether it comes from the right place.
"""

from __future__ import annotations

from typing import Any

BASE = 1000  # a trace counts in this number system: one digit for each rank, of six at most
FIRST = 11  # element i counts in units of FIRST + i, so that numbers of another place are noticed


def numbers(length: int, rank: int) -> Any:
    """What a rank has before the all-reduce."""
    import torch

    return (torch.arange(length) + FIRST) * BASE**rank


def what_was_added(after: list[list[int]], shape: tuple[int, int] | None, nodes_talked: bool) -> str:
    """The likely mistake, as a clause for a sentence.

    Args:
        after: for each rank, what the elements are; at least one of them is no sum of all ranks.
        shape: nodes and ranks per node, if there are nodes.
        nodes_talked: whether anything was sent from node to node.
    """
    n, length = len(after), len(after[0])
    right = [(FIRST + i) * sum(BASE**q for q in range(n)) for i in range(length)]
    if all(abs(value * n - total) < 1e-5 * total for one in after for value, total in zip(one, right, strict=True)):
        return "this is the average: an all-reduce gives the sum, and with integers an average loses digits"
    counts = {(r, i): _counts(value, i, n) for r, one in enumerate(after) for i, value in enumerate(one)}
    whole = {key for key, count in counts.items() if count == [1] * n}
    alone = {(r, i) for (r, i), count in counts.items() if count == [int(q == r) for q in range(n)]}
    if (left := set(counts) - whole) and left <= alone and min(i for _, i in left) >= length - length % n:
        lost = sorted({i for _, i in left})
        return f"the last elements are not added: {lost}. The length does not divide evenly, and no chunk holds them"
    if mixed := [key for key, count in counts.items() if count is None]:
        rank, i = mixed[0]
        return (
            f"element {i} of rank {rank} is no sum of numbers of this place: what a rank sends in a step must be the "
            "chunk that the other rank wants in that step"
        )
    for (rank, i), count in counts.items():
        if max(count) > 1:
            return (
                f"rank {rank} has counted rank {count.index(max(count))}'s numbers {max(count)} times in element {i}: "
                "add to each chunk once, and only overwrite in the second phase"
            )
    complete = [sum(r == rank for r, _ in whole) for rank in range(n)]
    if length in complete:
        return f"rank {complete.index(length)} has the whole sum, but rank {complete.index(min(complete))} has not"
    nodes, per_node = shape or (1, n)
    of_a_node = [sum(int(q // per_node == r // per_node) for q in range(n)) for r in range(n)]
    if shape and all(sum(count) == of_a_node[r] for (r, _), count in counts.items()) and nodes > 1:
        if nodes_talked:
            return (
                "every rank has the sum of its own node only, though ranks talk between the nodes: the share that they "
                "exchange must be the one that they have finished inside the node"
            )
        return "every rank has the sum of its own node only: the phase between the nodes is missing"
    if all(complete) and length >= n:
        return (
            f"rank 0 has the sum in {complete[0]} of {length} elements only: does a chunk hold every element, and "
            "does the last phase hand all finished chunks out?"
        )
    (rank, i), count = next((key, count) for key, count in counts.items() if key not in whole)
    return (
        f"rank {count.index(0)}'s numbers are missing in element {i} of rank {rank}: the first phase is too short, or "
        "the second one hands out a chunk that is not finished"
    )


def _counts(value: int, place: int, ranks: int) -> list[int] | None:
    """How often each rank's number is in a sum; None if it cannot be made of numbers of this place."""
    digits = [value // BASE**rank % BASE for rank in range(ranks)]
    if value < 0 or value >= BASE**ranks or any(digit % (FIRST + place) for digit in digits):
        return None
    return [digit // (FIRST + place) for digit in digits]
