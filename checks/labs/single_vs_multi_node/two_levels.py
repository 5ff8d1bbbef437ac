"""Check of ``all_reduce_in_levels``: the sum of all ranks, and the bytes between and inside the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, same, watched
from checks.engine.watching import messages

SCATTER = "    dist.reduce_scatter_tensor(share, tensor, group=node_group)\n"
ACROSS = "    dist.all_reduce(share, group=cross_group)\n"
GATHER = "    dist.all_gather_into_tensor(tensor, share, group=node_group)"
MY_SHARE = "tensor.view(node_group.size(), -1)[node_group.rank()]"
OFFICIAL = Reference("single_vs_multi_node", "all_reduce_in_levels", {
    "it is the sum of this node only": {ACROSS: ""},
    "it is the sum across the nodes only":
        {SCATTER + ACROSS + GATHER: "    dist.all_reduce(tensor, group=cross_group)"},
    "each share is the sum across the nodes of one rank's numbers: first add up inside the node":
        {SCATTER: f"    share.copy_({MY_SHARE})\n"},
    "the tensor is not touched: the sum has to be in the tensor itself":
        {GATHER: GATHER.replace("tensor(t", "tensor(0 * t")},
    "only this rank's share of the tensor is the sum: at the end the shares are handed round":
        {GATHER: f"    {MY_SHARE} = share"},
    "it is the mean: only the sum is asked for": {GATHER: "    share /= dist.get_world_size()\n" + GATHER},
    "the right sums, but the shares lie in another order":
        {SCATTER: "    dist.reduce_scatter(share, list(tensor.chunk(node_group.size()))[::-1], group=node_group)\n"},
})  # fmt: skip
SHAPES = (2, 3, 12, "float32"), (3, 2, 30, "float64"), (3, 2, 6, "float32"), (6, 1, 18, "float32"), (1, 6, 6, "float64")
CASES = [dict(zip(("nodes", "per_node", "numbers", "dtype"), one, strict=True), seed=sum(one[:3])) for one in SHAPES]
BETWEEN = "more bytes go between the nodes than 2(N − 1)/N · S/L: every rank takes only its share there"
INSIDE = "more bytes go inside the nodes than 2(L − 1)/L · S: first the sum of one share for each rank, then all shares"


@exercise(OFFICIAL, CASES, title="An all-reduce in two levels", difficulty=2, minutes=20, ranks=(6,))
def levels_with_groups(case: dict[str, Any], all_reduce_in_levels: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``all_reduce_in_levels(tensor, node_group, cross_group)``."""
    nodes, per_node, (node, local) = case["nodes"], case["per_node"], divmod(dist.get_rank(), case["per_node"])
    lists = [[n * per_node + k for k in range(per_node)] for n in range(nodes)]
    node_group = [dist.new_group(ranks) for ranks in lists][node]
    cross_group = [dist.new_group(list(ranks)) for ranks in zip(*lists, strict=True)][local]
    terms = [_term(case, rank) for rank in range(nodes * per_node)]
    tensor = terms[dist.get_rank()].clone()
    with leaves(), watched() as seen:
        all_reduce_in_levels(tensor, node_group, cross_group)
    refuse(messages(seen.calls), "sends messages to single ranks: collectives in the two groups are enough")
    if same(tensor, sum(terms)):  # (else it is told what is wrong with the numbers)
        between = inside = 0.0
        for call in seen.calls:
            crosses = len({rank // per_node for rank in call["members"]}) > 1
            between, inside = between + _ring(call) * crosses, inside + _ring(call) * (not crosses)
        most = 2 * (nodes - 1) / nodes * tensor.nbytes / per_node
        refuse(between > most + 1, BETWEEN, measured=round(between), expected=round(most))
        most = 2 * (per_node - 1) / per_node * tensor.nbytes
        refuse(inside > most + 1, INSIDE, measured=round(inside), expected=round(most))
    return {"the tensor": tensor}


def _ring(call: dict[str, Any]) -> float:
    """Bytes that a rank sends in a collective that goes as a ring."""
    size, nbytes = len(call["members"]), call["bytes"]
    if call["name"] == "all_reduce":
        return 2 * (size - 1) / size * nbytes
    return (size - 1) * nbytes if call["name"] == "all_gather" else (size - 1) / size * nbytes


def _term(case: dict[str, Any], rank: int) -> torch.Tensor:
    """A rank's numbers; one rank has nothing but zeros, and takes part all the same."""
    generator = torch.Generator().manual_seed(100 * case["seed"] + rank)
    return torch.randn(case["numbers"], generator=generator, dtype=getattr(torch, case["dtype"])) * (rank != 4)
