"""How long operations take over links by the α–β model: one message, and collectives by several algorithms.

Sources:
    Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, International
    Journal of High Performance Computing Applications 19(1), 2005, pages 49–66 (the α–β model, trees).
    Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, Journal of Parallel
    and Distributed Computing 69(2), 2009, pages 117–124 (the ring, and the proof that it sends the least).

All formulas count communication only. The additions of a reduction (Thakur's γ) are left out: a GPU or CPU
adds numbers much faster than a link brings them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from utils.hardware.links.link import Link


def _check(nbytes: float, ranks: int) -> None:
    if nbytes < 0:
        raise ValueError(f"nbytes must be at least 0, not {nbytes}")
    if ranks < 1:
        raise ValueError(f"there must be at least one rank, not {ranks}")


def point_to_point(nbytes: float, link: Link) -> float:
    """Seconds to send one message of ``nbytes`` bytes: α + n·β."""
    _check(nbytes, 1)
    return link.alpha_s + nbytes * link.beta_s_per_byte


def ring_reduce_scatter(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds until each rank holds its 1/p of the sum: p−1 steps, each with one chunk of n/p bytes.

    (p−1)·α + (p−1)/p·n·β. An all-gather around the ring costs the same (``ring_all_gather``).
    """
    _check(nbytes, ranks)
    return (ranks - 1) * point_to_point(nbytes / ranks, link)


def ring_all_gather(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds until every rank has all p chunks of n/p bytes: (p−1)·α + (p−1)/p·n·β."""
    return ring_reduce_scatter(nbytes, ranks, link)


def ring_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds for a ring all-reduce: 2(p−1)·α + 2(p−1)/p·n·β.

    Args:
        nbytes: n, the size of the tensor on each rank, in bytes.
        ranks: p, the number of ranks in the ring. Each sends to its right neighbour while it receives from
            its left.
        link: what connects neighbours (both directions are used at once).

    Source: Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005.
    """
    return ring_reduce_scatter(nbytes, ranks, link) + ring_all_gather(nbytes, ranks, link)


def ring_all_reduce_bytes_per_rank(nbytes: float, ranks: int) -> float:
    """Bytes that each rank sends (and receives) in a ring all-reduce: 2(p−1)/p·n.

    No all-reduce can do with less when every rank sends the same amount (Patarasuk and Yuan 2009).
    """
    _check(nbytes, ranks)
    return 2 * (ranks - 1) / ranks * nbytes


def mixed_ring_all_reduce(nbytes: float, links: Sequence[Link]) -> float:
    """Seconds for a ring in which each hop has its own link: the slowest link rules.

    All ranks step together, so each of the 2(p−1) steps takes as long as its slowest hop:
    2(p−1)·max(α + n/p·β). ``links[i]`` connects rank i with rank i+1; the last one closes the ring.
    """
    ranks = len(links)
    _check(nbytes, ranks)
    return 2 * (ranks - 1) * max(point_to_point(nbytes / ranks, link) for link in links)


def flat_ring_all_reduce(nbytes: float, nodes: int, per_node: int, inside: Link, between: Link) -> float:
    """Seconds for ONE ring through all ranks of all nodes, which does not care where the nodes end.

    The ring leaves each node once, so one hop of every node is ``between``; see ``mixed_ring_all_reduce``.
    """
    _check(nbytes, min(nodes, per_node))
    if nodes == 1:
        return ring_all_reduce(nbytes, per_node, inside)
    return mixed_ring_all_reduce(nbytes, [*[inside] * (per_node - 1), between] * nodes)


def tree_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds for a reduce up a binary (binomial) tree and a broadcast down again: 2·⌈log₂ p⌉·(α + n·β).

    Few steps, but each carries the whole tensor: good for small tensors. The tensor is not cut into pieces
    here; libraries that do so (NCCL's trees) bring the second part down towards 2·n·β.

    Source: Thakur, Rabenseifner and Gropp 2005 (binomial trees).
    """
    _check(nbytes, ranks)
    return 2 * math.ceil(math.log2(ranks)) * point_to_point(nbytes, link)


def naive_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds if rank 0 collects every tensor, adds them, and sends the sum back: 2(p−1)·(α + n·β).

    Rank 0 has one link, so the messages queue: the time grows with the number of ranks.
    """
    _check(nbytes, ranks)
    return 2 * (ranks - 1) * point_to_point(nbytes, link)


def halving_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds for recursive halving and doubling: 2·log₂(p)·α + 2(p−1)/p·n·β for p a power of two.

    For any other p, a step with all n bytes comes before and after, + 2(α + n·β), and the next smaller power of two
    takes the place of p.
    """
    _check(nbytes, ranks)
    power = 1 << (ranks.bit_length() - 1)
    steps = power.bit_length() - 1
    inner = sum(2 * point_to_point(nbytes / 2 ** (step + 1), link) for step in range(steps))
    return inner + (0 if power == ranks else 2 * point_to_point(nbytes, link))


def hierarchical_all_reduce(
    nbytes: float, nodes: int, per_node: int, inside: Link, between: Link, nics_per_node: int = 1
) -> float:
    """Seconds for an all-reduce in three phases that keeps most of the traffic inside the nodes.

    1. reduce-scatter inside each node, so that each of the L local ranks holds 1/L of the node's sum;
    2. all-reduce between the nodes, one ring for each local rank, n/L bytes each, all L rings at the same
       time;
    3. all-gather inside each node.

    Time: 2(L−1)·α_in + 2(L−1)/L·n·β_in  +  2(N−1)·α_out + 2(N−1)/N·(n/L)·β_out·L/min(L, nics)

    Args:
        nbytes: n, the size of the tensor on each rank, in bytes.
        nodes: N, the number of nodes.
        per_node: L, the number of ranks on each node.
        inside: link between ranks of a node.
        between: what ONE network card (NIC) does.
        nics_per_node: network cards of a node. With one card the L rings share its bandwidth.
    """
    _check(nbytes, min(nodes, per_node, nics_per_node))
    shared = between.shared_by(per_node / min(per_node, nics_per_node))
    return (
        ring_reduce_scatter(nbytes, per_node, inside)
        + ring_all_reduce(nbytes / per_node, nodes, shared)
        + ring_all_gather(nbytes, per_node, inside)
    )
