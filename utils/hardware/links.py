"""How long does it take to send data? The α–β model, and what the links of a cluster can do.

A message of n bytes over a link takes

    time = α + n·β        α: latency in seconds per message,   β = 1 / bandwidth: seconds per byte

This module is the only home of that formula, and ``links.toml`` beside it of the link data (``NVLINK4``,
``ETHERNET_25``, …): the lectures, the simulated clusters and the pictures all read from here. It needs neither torch
nor numpy (only ``fit`` uses numpy).

Two things are often mixed up, so this module is strict about them:

- **One direction or both.** Data sheets of NVLink add both directions together: the 900 GB/s of an H100 is
  450 GB/s out *and* 450 GB/s in, at the same time. ``Link.bytes_per_s`` is always one direction. Network
  speeds are sold per direction already.
- **Bits or bytes.** Networks are sold in bits per second (25 Gbit/s = 3.125 GB/s), everything inside a
  machine in bytes per second. ``Link.bytes_per_s`` is always bytes. 1 GB is 10⁹ bytes.

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
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Link:
    """One kind of connection between two places, in one direction.

    Args:
        name: what people call it, for example "NVLink 4 (H100)".
        alpha_s: α, the latency of one message, in seconds.
        bytes_per_s: peak bandwidth of ONE direction, in bytes per second.
        year: when the standard or product came out, or when it was measured.
        source: where the bandwidth is from.
        alpha_source: where the latency is from.
        full_duplex: True if both directions run at full speed at the same time. Memory cannot do that: reads
            and writes share the bandwidth.
        family: "NVLink", "PCIe" or "network": which of NCCL's latencies count. "": none, α is all.
        share: part of the bandwidth that large copies reach.
        collective_share: the same for NCCL's rings. None: as ``share``.
        switch_bytes_per_s: size over time of a large all-reduce that the switch between the GPUs adds up; 0: it cannot.
        share_source: where the last three are from.
        start_s: what nccl-tests measures on top of NCCL's own latencies, however small the message.
        channels: how many NCCL opens for a collective: over all of a GPU's links to the GPUs of its node, or over one
            network card. 0: not known.
    """

    name: str
    alpha_s: float
    bytes_per_s: float
    year: int
    source: str
    alpha_source: str = "assumed"
    full_duplex: bool = True
    family: str = ""
    share: float = 1.0
    collective_share: float | None = None
    switch_bytes_per_s: float = 0.0
    share_source: str = "assumed"
    start_s: float = 20e-6
    channels: int = 0

    def __post_init__(self) -> None:
        if self.alpha_s < 0 or self.bytes_per_s <= 0:
            raise ValueError(f"{self.name}: a link needs a latency of at least 0 and a bandwidth above 0")

    @property
    def beta_s_per_byte(self) -> float:
        """β, the time that each further byte costs, in seconds."""
        return 1.0 / self.bytes_per_s

    def for_copies(self) -> Link:
        """The link with the bandwidth that large copies reach as its peak."""
        return replace(self, bytes_per_s=self.bytes_per_s * self.share, share=1.0, collective_share=None)

    def for_collectives(self) -> Link:
        """The link with the bandwidth that rings reach as its peak."""
        share = self.share if self.collective_share is None else self.collective_share
        return replace(self, bytes_per_s=self.bytes_per_s * share, share=1.0, collective_share=None)

    @property
    def label(self) -> str:
        """Name and bandwidth in bytes, for pictures: "Ethernet 25 Gbit/s: 3.125 GB/s each way"."""
        return f"{self.name}: {self.bytes_per_s / 1e9:.4g} GB/s {'each way' if self.full_duplex else 'in all'}"

    def shared_by(self, users: float) -> Link:
        """The link as one of several equal users sees it: the same latency, a part of the bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s / max(1.0, users))


def fit(sizes: Sequence[float], times: Sequence[float], name: str = "measured here", year: int = 0) -> Link:
    """The link whose α + n·β is nearest to measured times (least squares of the RELATIVE error).

    Relative, because otherwise the largest messages alone would decide and α would be noise.

    Args:
        sizes: message sizes in bytes, at least two different ones.
        times: seconds each of them took.
    """
    import numpy as np

    n, t = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
    if n.shape != t.shape or len(set(n.tolist())) < 2 or (t <= 0).any():
        raise ValueError("fit needs as many times as sizes, times above 0, and at least two different sizes")
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([1 / t, n / t], axis=1), np.ones_like(t), rcond=None)
    if beta <= 0:
        raise ValueError("larger messages were not slower: measure larger ones, or more often")
    return Link(name, max(0.0, float(alpha)), 1.0 / float(beta), year, "measured", "measured")


def _read() -> tuple[dict[str, Link], tuple[Link, ...]]:
    """The links of ``links.toml`` by their names in programs, and those that are chosen by what people call them."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    families, sources = tables.pop("families"), tables.pop("sources")
    found, listed = {}, []
    for key, own in tables.items():
        values = families.get(own.get("family"), {}) | own
        shown = values.pop("listed", True)
        if "gigatransfers" in values:
            speed = values.pop("gigatransfers") * 1e9 * 128 / 130 * 16 / 8
        else:
            speed = values.pop("gigabytes") * 1e9 if "gigabytes" in values else values.pop("gigabits") * 1e9 / 8
        for field, reached in (("share", "copies"), ("collective_share", "rings")):
            if reached in values:
                values[field] = values.pop(reached) * 1e9 / speed
        if "start_us" in values:
            values["start_s"] = values.pop("start_us") * 1e-6
        values["switch_bytes_per_s"] = values.pop("switch", 0) * 1e9
        source = values.pop("alpha_source")
        values["alpha_source"] = sources.get(source, source) + values.pop("alpha_more", "")
        found[key] = Link(bytes_per_s=speed, **values)
        listed += [found[key]] * shown
    return found, tuple(listed)


_LINKS, ALL = _read()
"""``ALL``: every link between GPUs or machines, from the slowest to the fastest."""


def __getattr__(name: str) -> Link:
    if name in _LINKS:
        return _LINKS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- How long messages and collectives take ---


def _check(nbytes: float, ranks: float) -> None:
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

    (p−1)·α + (p−1)/p·n·β. An all-gather around the ring costs the same.
    """
    _check(nbytes, ranks)
    return (ranks - 1) * point_to_point(nbytes / ranks, link)


def ring_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds for a ring all-reduce: 2(p−1)·α + 2(p−1)/p·n·β.

    Args:
        nbytes: n, the size of the tensor on each rank, in bytes.
        ranks: p, the number of ranks in the ring. Each sends to its right neighbour while it receives from
            its left.
        link: what connects neighbours (both directions are used at once).

    Source: Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005.
    """
    return 2 * ring_reduce_scatter(nbytes, ranks, link)


def flat_ring_all_reduce(
    nbytes: float, nodes: int, per_node: int, inside: Link, between: Link, rings: int = 1
) -> float:
    """Seconds for one ring through all ranks of all nodes, or some at once, each over a NIC and for a part of its own.

    A ring leaves each node once, so one hop of every node is ``between``. All ranks step together, so each of the
    2(p−1) steps takes as long as its slowest hop: 2(p−1)·max(α + n/p·β).
    """
    _check(nbytes, min(nodes, per_node))
    if nodes == 1:
        return ring_all_reduce(nbytes, per_node, inside)
    ranks = nodes * per_node
    hops = [between] if per_node == 1 else [inside.shared_by(rings), between]
    return 2 * (ranks - 1) * max(point_to_point(nbytes / rings / ranks, link) for link in hops)


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
    nbytes: float, nodes: int, per_node: int, inside: Link, between: Link, nics_per_node: float = 1
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
    inner = ring_reduce_scatter(nbytes, per_node, inside)  # and the all-gather, which takes as long
    return inner + ring_all_reduce(nbytes / per_node, nodes, shared) + inner
