"""Exercise 1 of the lab on one node and several: from a place to a rank, and back."""

# ruff: noqa: F401 (modules that changed answers use)
import bisect
import itertools
import random

import numpy as np
from known_answers import right, wrong


def rank_of(node_rank, local_rank, counts):
    return sum(counts[:node_rank]) + local_rank


def coordinates_of(rank, counts):
    node, local = 0, rank
    while local >= counts[node]:
        local -= counts[node]
        node += 1
    return node, local, sum(counts)


RANK = "    return sum(counts[:node_rank]) + local_rank"
BACK = "    return node, local, sum(counts)"
LOOP = "    while local >= counts[node]:\n        local -= counts[node]\n        node += 1\n"


# --- right, and written differently

right("a list comes back", {BACK: "    return [node, local, sum(counts)]"})


@right("all places in a list")
def all_places():
    def places(counts):
        return [(node, local) for node in range(len(counts)) for local in range(counts[node])]

    def rank_of(node_rank, local_rank, counts):
        return places(counts).index((node_rank, local_rank))

    def coordinates_of(rank, counts):
        return *places(counts)[rank], len(places(counts))

    return rank_of, coordinates_of


@right("where each node begins")
def begins():
    def rank_of(node_rank, local_rank, counts):
        return [0, *itertools.accumulate(counts)][node_rank] + local_rank

    def coordinates_of(rank, counts):
        first = [0, *itertools.accumulate(counts)]
        node = bisect.bisect_right(first, rank) - 1
        return node, rank - first[node], first[-1]

    return rank_of, coordinates_of


@right("by counting, with recursion")
def recursive():
    def rank_of(node_rank, local_rank, counts):
        return local_rank if node_rank == 0 else counts[0] + rank_of(node_rank - 1, local_rank, counts[1:])

    def coordinates_of(rank, counts):
        for node in range(len(counts)):
            for local in range(counts[node]):
                if rank_of(node, local, counts) == rank:
                    return (node, local, sum(counts))

    return rank_of, coordinates_of


# --- wrong

wrong(
    "dealt like cards",
    "like cards",
    {RANK: "    return sum(min(c, local_rank) for c in counts) + sum(c > local_rank for c in counts[:node_rank])"},
)
wrong(
    "all nodes like this one",
    "add up how many processes",
    {RANK: "    return node_rank * counts[node_rank] + local_rank"},
)
wrong("all nodes like the first", "not all are like the first", {RANK: "    return node_rank * counts[0] + local_rank"})
wrong(
    "times the number of nodes", "not by the number of nodes", {RANK: "    return node_rank * len(counts) + local_rank"}
)
wrong("the local rank only", "the local rank alone is not enough", {RANK: "    return local_rank"})
wrong("counted from one", "ranks are counted from 0", {RANK: RANK + " + 1"})
wrong("this node too", "own processes are not before it", {"[:node_rank]": "[: node_rank + 1]"})
wrong("the mean", "is no whole number", {RANK: "    return node_rank * sum(counts) / len(counts) + local_rank"})
wrong(
    "the wrong way round",
    "right for another process than",
    {RANK: "    return sum(counts) - 1 - sum(counts[:node_rank]) - local_rank"},
)
wrong(
    "only small clusters",
    "right for another process than",
    {RANK: "    return min(sum(counts[:node_rank]) + local_rank, 63)"},
)
wrong("a text", "returns one whole number", {RANK: "    return f'{sum(counts[:node_rank]) + local_rank}'"})
wrong("nothing", "returns one whole number", {RANK: RANK.replace("return", "rank =")})
wrong("counts are sorted", "changes the list `counts`", {RANK: "    counts.sort()\n" + RANK})
wrong("swapped coordinates", "swapped in what you return", {BACK: "    return local, node, sum(counts)"})
wrong("the number of nodes", "yours counts nodes", {BACK: BACK.replace("sum(counts)", "len(counts)")})
wrong("divided by the first", "not all are like the first", {LOOP: "    node, local = divmod(rank, counts[0])\n"})
wrong("divided by the nodes", "not by the number of nodes", {LOOP: "    node, local = divmod(rank, len(counts))\n"})
wrong("dealt back like cards", "you deal the ranks out like cards", {
    LOOP: "    order = sorted((k, n) for n in range(len(counts)) for k in range(counts[n]))\n    local, node = order[rank]\n"
})  # fmt: skip
wrong("coordinates from one", "counted from 0, yours from 1", {BACK: "    return node + 1, local + 1, sum(counts)"})
wrong("one too late", "right for another process than", {"while local >= counts[node]": "while local > counts[node]"})
wrong("false for rank 0", "returns one whole number", {RANK: RANK + " or False"})
wrong("texts", "returns three whole numbers", {BACK: "    return str(node), str(local), str(sum(counts))"})
wrong("two numbers", "returns three numbers", {BACK: "    return node, local"})
wrong("floats", "is no whole number", {BACK: "    return node / 1, local, sum(counts)"})
wrong(
    "counts are used up",
    "raised IndexError",
    {LOOP: "    while local >= counts[0]:\n        local -= counts.pop(0)\n        node += 1\n"},
)
wrong("for ever", "a loop without end", {LOOP: "    while local >= counts[node]:\n        node = 0\n"})
wrong("seeds the random numbers", "random numbers other", {BACK: "    random.seed(0)\n" + BACK})
wrong(
    "counts how often it is asked",
    "right for another process than",
    {
        RANK: "    start = node_rank == local_rank == 0\n    rank_of.last = 0 if start else getattr(rank_of, 'last', -1) + 1\n"
        "    return rank_of.last"
    },
)


@right("numpy's whole numbers")
def with_numpy():
    def rank_of(node_rank, local_rank, counts):
        return np.cumsum([0, *counts])[node_rank] + local_rank

    def coordinates_of(rank, counts):
        ends = np.cumsum(counts)
        node = np.searchsorted(ends, rank, side="right")
        return node, rank - (ends[node] - counts[node]), ends[-1]

    return rank_of, coordinates_of


# --- wrong: what is remembered, and what a byte holds

SEEN = "    seen = rank_of.__dict__.setdefault('seen', {})\n"
wrong("known by length and sum", "right for another process than", {
    RANK: SEEN + "    key = node_rank, local_rank, len(counts), sum(counts)\n"
    "    return seen.setdefault(key, sum(counts[:node_rank]) + local_rank)"
})  # fmt: skip
wrong("known by the list, which changes", "raised IndexError", {
    RANK: SEEN + "    if id(counts) not in seen:\n        seen[id(counts)] = [0, *itertools.accumulate(counts)]\n"
    "    return seen[id(counts)][node_rank] + local_rank"
})  # fmt: skip
wrong("added up in a byte", "right for another process than", {
    RANK: "    return int(np.array(counts[:node_rank], dtype=np.uint8).sum(dtype=np.uint8)) + local_rank"
})  # fmt: skip


@right("tensors and arrays")
def tensors_and_arrays():
    import torch

    def rank_of(node_rank, local_rank, counts):
        return torch.tensor(counts[:node_rank], dtype=torch.long).sum() + local_rank

    def coordinates_of(rank, counts):
        node = np.searchsorted(np.cumsum(counts), rank, side="right")
        return np.array([node, rank - sum(counts[:node]), sum(counts)])

    return rank_of, coordinates_of


wrong("looked up on the wrong side", "right for another process than", {
    LOOP: "    ends = list(itertools.accumulate(counts))\n    node = bisect.bisect_left(ends, rank)\n    local = rank - sum(counts[:node])\n"
})  # fmt: skip
wrong("the processes of one node", "the world size is not", {BACK: BACK.replace("sum(counts)", "counts[node]")})
