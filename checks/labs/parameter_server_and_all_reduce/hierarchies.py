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
ADD = "            target += incoming"
OFFICIAL = Reference("parameter_server_and_all_reduce", "hierarchical_all_reduce", {
    **summing.mistakes(SHARES, LAST, "(nodes * per_node)"),
    "every rank has the sum of its own node only: the phase between the nodes is missing": {ACROSS: "", RETURN: ""},
    "every rank has the sum of the ranks with its own local rank only: the phases inside the nodes are missing":
        {"    around(shares, inside, local, add=True)\n": "    chunks = tensor.tensor_split(nodes)\n", LAST: ""},
    "the phase between the nodes is an all-reduce: its second half, which hands out the finished chunks, is missing":
        {RETURN: ""},
    "the last phase is missing: each rank has finished one share only": {LAST: "    return"},
    "the share that goes to the other nodes must be the one that a rank has finished inside its node":
        {"shares[(local + 1) % per_node]": "shares[local]"},
    "the last phase hands out another share than the one that a rank has finished": {LAST: LAST.replace(" + 1", "")},
    "the last elements are not added: the length does not divide evenly, and no share holds them":
        {SHARES: "    shares = tensor[: len(tensor) // per_node * per_node].tensor_split(per_node)\n"},
    summing.ROUNDED:
        {ADD: "            target.copy_(target.float() + incoming.float() if target.is_floating_point() else "
              "target + incoming)"},
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
    size, whole = summing.item(case), case["length"] * summing.item(case)
    share = math.ceil(case["length"] / per_node) * size

    def call(tensor: Any) -> None:
        hierarchical_all_reduce(tensor, nodes, per_node)

    tensor, sent, held = summing.summed(case, call)
    abroad = [(peer, nbytes) for peer, nbytes in sent if peer // per_node != rank // per_node]
    seen = {"the tensor": tensor}
    if case["length"] > ranks:  # (else a rank's part may be empty)
        seen["whether a rank talks to other nodes"] = bool(abroad)
    if not held:
        return seen
    right = {peer for peer, nbytes in sent if nbytes} == {(rank + 1) % ranks}
    mine, told = sum(nbytes for _, nbytes in abroad), [(0, False)] * ranks
    dist.all_gather_object(told, (mine, right))
    everyone, flat = [out for out, _ in told], min(nodes, per_node) > 1 and all(right for _, right in told)
    words = "this is one flat ring through all ranks, which sends much from node to node: add up inside the node first"
    refuse(flat, words)
    across = 2 * (nodes - 1) / nodes * whole
    # The shares of two ranks may differ by one element, and so may their parts; a rank may send its own to all others.
    within = max(math.ceil(share / size / nodes) + 1, nodes) * size
    for node in range(nodes):
        out = sum(everyone[node * per_node : (node + 1) * per_node])
        words = f"node {node} sends more to other nodes than 2(M − 1)/M · S (in bytes): add up inside the node first, "
        words += "then every rank takes only its share of S/L to the other nodes"
        refuse(out > across + per_node * within, words, measured=out, expected=round(across))
    words = "carries more than its share between the nodes, while its node's others wait: each of the L ranks takes S/L"
    refuse(max(everyone) > across / per_node + within, f"rank {everyone.index(max(everyone))} {words} (in bytes)",
           measured=max(everyone), expected=round(across / per_node))  # fmt: skip
    odd = [peer for peer, nbytes in abroad if nbytes and peer % per_node != rank % per_node]
    words = (
        "sends to another local rank of another node: its partners there have its own local rank, and the same share"
    )
    refuse(odd, words, measured=odd and odd[0])
    inside, target = sum(nbytes for _, nbytes in sent) - mine, 2 * (per_node - 1) / per_node * whole
    words = f"sends {'more' if inside > target else 'less'} inside its node than 2(L − 1)/L · S (in bytes)"
    refuse(abs(inside - target) > max(share, per_node * size), words, measured=inside, expected=round(target))
    summing.lean(held, share, "a share of S/L")
    return seen
