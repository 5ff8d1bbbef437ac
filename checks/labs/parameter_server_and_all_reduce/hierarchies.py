"""Check of ``hierarchical_all_reduce``: the sum in place, and little from node to node, shared by the node's ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.labs.parameter_server_and_all_reduce import summing

SHARES = "    shares = tensor.tensor_split(per_node)\n"
ACROSS = "    around(chunks, partners, node, add=True)\n"
RETURN = "    around(chunks, partners, node + 1, add=False)\n"
LAST = "    around(shares, inside, local + 1, add=False)"
OFFICIAL = Reference("parameter_server_and_all_reduce", "hierarchical_all_reduce", {
    **summing.mistakes(SHARES, "(nodes * per_node)"),
    "every rank has the sum of its own node only: the phase between the nodes is missing": {ACROSS: "", RETURN: ""},
    "the phase between the nodes is an all-reduce: its second half, which hands out the finished chunks, is missing":
        {RETURN: ""},
    "the last phase is missing: each rank has finished one share only": {LAST: "    return"},
    "the share that goes to the other nodes must be the one that a rank has finished inside its node":
        {"shares[(local + 1) % per_node]": "shares[local]"},
    "the last phase hands out another share than the one that a rank has finished": {LAST: LAST.replace(" + 1", "")},
    "the last elements are not added: the length does not divide evenly, and no share holds them":
        {SHARES: "    shares = tensor[: len(tensor) // per_node * per_node].tensor_split(per_node)\n"},
})  # fmt: skip
_SHAPES = [(2, 3), (3, 2), (2, 3), (3, 2), (1, 6), (6, 1), (2, 3), (2, 3), (3, 2), (1, 1), (1, 1)]
_ORDER = [0, 1, 2, 3, 6, 1, 4, 5, 7, 1, 4]
CASES = [{"nodes": n, "per_node": each, **summing.CASES[i]} for (n, each), i in zip(_SHAPES, _ORDER, strict=True)]


@exercise(OFFICIAL, CASES, title="Hierarchical all-reduce", difficulty=3, minutes=30, ranks=(6, 1))
def levels(case: dict[str, Any], hierarchical_all_reduce: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``hierarchical_all_reduce(tensor, nodes, per_node)``: a ring inside the nodes, and rings between them."""
    nodes, per_node, rank, ranks = case["nodes"], case["per_node"], dist.get_rank(), dist.get_world_size()
    if nodes * per_node != ranks:
        return {}
    tensor, sent, held = summing.summed(case, lambda tensor: hierarchical_all_reduce(tensor, nodes, per_node))
    mine, told = sum(nbytes for peer, nbytes in sent if peer // per_node != rank // per_node), [(0, False)] * ranks
    seen: dict[str, Any] = {"the tensor": tensor}
    if len(tensor) > ranks:  # (else a rank's part may be empty)
        seen["whether a rank talks to other nodes"] = bool(mine)
    if not held:
        return seen
    size, whole, share = tensor.itemsize, tensor.nbytes, math.ceil(len(tensor) / per_node) * tensor.itemsize
    right = {peer for peer, nbytes in sent if nbytes} == {(rank + 1) % ranks}
    dist.all_gather_object(told, (mine, right))
    fault = "this is one flat ring through all ranks, which sends much from node to node: add up inside the node first"
    refuse(min(nodes, per_node) > 1 and all(right for _, right in told), fault)
    across = 2 * (nodes - 1) / nodes * whole
    # The shares of two ranks may differ by one element, and so may their parts; a rank may send its own to all others.
    within = max(math.ceil(share / size / nodes) + 1, nodes) * size
    node = rank // per_node
    out = sum(nbytes for nbytes, _ in told[node * per_node :][:per_node])
    fault = f"node {node} sends more to other nodes than 2(M − 1)/M · S (in bytes): add up inside the node first, "
    fault += "then every rank takes only its share of S/L to the other nodes"
    refuse(out > across + per_node * within, fault, measured=out, expected=round(across))
    fault = f"rank {rank} carries more than its share of S/L between the nodes (in bytes), while others wait"
    refuse(mine > across / per_node + within, fault, measured=mine, expected=round(across / per_node))
    inside, target = sum(nbytes for _, nbytes in sent) - mine, 2 * (per_node - 1) / per_node * whole
    fault = f"sends {'more' if inside > target else 'less'} inside its node than 2(L − 1)/L · S (in bytes)"
    refuse(abs(inside - target) > max(share, per_node * size), fault, measured=inside, expected=round(target))
    summing.lean(case, held, share, "a share of S/L")
    return seen
