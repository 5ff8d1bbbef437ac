"""Exercise 1 of the lab on one node and several: from a place to a rank, and back. What is not here is in the official solution."""

import numpy as np
import torch
from known_answers import right, wrong

RANK, BACK = "sum(counts[:node_rank]) + local_rank", "return node, local, sum(counts)"


@right("all places in a list")
def all_places():
    def places(counts):
        return [(node, local) for node in range(len(counts)) for local in range(counts[node])]

    def rank_of(node_rank, local_rank, counts):
        return places(counts).index((node_rank, local_rank))

    def coordinates_of(rank, counts):
        return *places(counts)[rank], len(places(counts))

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
wrong("counts are used up", "changes `counts`", {"counts[node]:": "counts[0]:", "-= counts[node]": "-= counts.pop(0)"})
wrong("texts", "returns three whole numbers", {BACK: "return str(node), str(local), str(sum(counts))"})
wrong("two numbers", "returns three numbers", {BACK: "return node, local"})
wrong("added up in a byte", "rank_of(16, 0, counts)", {
    "    return " + RANK: "    import numpy as np\n\n"
    "    return int(np.array(counts[:node_rank], dtype=np.uint8).sum(dtype=np.uint8)) + local_rank"
})  # fmt: skip
