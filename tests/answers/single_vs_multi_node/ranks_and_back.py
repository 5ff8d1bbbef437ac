"""Exercise 1 of the lab on one node and several: from a place to a rank, and back. What is not here is in the official solution."""

import bisect
import itertools

import numpy as np
import torch
from known_answers import right, wrong

RANK, BACK = "sum(counts[:node_rank]) + local_rank", "return node, local, sum(counts)"
right("a list comes back", {BACK: "return [node, local, sum(counts)]"})


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


@right("numpy's whole numbers")
def with_numpy():
    def rank_of(node_rank, local_rank, counts):
        return np.cumsum([0, *counts])[node_rank] + local_rank

    def coordinates_of(rank, counts):
        ends = np.cumsum(counts)
        node = np.searchsorted(ends, rank, side="right")
        return node, rank - (ends[node] - counts[node]), ends[-1]

    return rank_of, coordinates_of


@right("tensors and arrays")
def tensors_and_arrays():
    def rank_of(node_rank, local_rank, counts):
        return torch.tensor(counts[:node_rank], dtype=torch.long).sum() + local_rank

    def coordinates_of(rank, counts):
        node = np.searchsorted(np.cumsum(counts), rank, side="right")
        return np.array([node, rank - sum(counts[:node]), sum(counts)])

    return rank_of, coordinates_of


wrong("a float", "/ a float", {RANK: "node_rank * sum(counts) / len(counts) + local_rank"})
wrong("nothing", "returns one whole number", {"    return " + RANK: "    rank = " + RANK})
wrong("counts are used up", "changes `counts`", {"counts[node]:": "counts[0]:", "-= counts[node]": "-= counts.pop(0)"})
wrong("texts", "returns three whole numbers", {BACK: "return str(node), str(local), str(sum(counts))"})
wrong("two numbers", "returns three numbers", {BACK: "return node, local"})
wrong("added up in a byte", "rank_of(16, 0, counts)", {
    "    return " + RANK: "    import numpy as np\n\n"
    "    return int(np.array(counts[:node_rank], dtype=np.uint8).sum(dtype=np.uint8)) + local_rank"
})  # fmt: skip
