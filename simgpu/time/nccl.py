"""How long a collective of NCCL takes: its rings, trees and switches, and the one that it chooses.

NCCL reckons for each collective how long every algorithm would take with every protocol, and takes the fastest. So does
``choose``, with NCCL's own latencies:

- **Ring**: several rings at once, which share the bandwidth of all links. 2(p−1) steps for an all-reduce.
- **Tree**: a chain inside each node, a tree of nodes, in small pieces one behind the other: few steps, a little less
  bandwidth. For an all-reduce only.
- **NVLS**: the switch between the GPUs of one node adds up, so each GPU sends its tensor once. Hopper's NVLink has it.
  Between nodes it is joined by a tree.

The protocols are three ways to say that data have come. *Simple* waits for large pieces. *LL* puts a flag beside each 4
bytes: quick, and half of the traffic is flags. *LL128* has 8 bytes of flags in 128.

Source of the latencies: NVIDIA/nccl 2.28 (2025), src/graph/tuning.cc, the tables of base and hardware latencies; of
LL's and the trees' shares of the bandwidth, the same file. What the links reach is ``Link.collective_share``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from utils.hardware.links import Link

_BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_STEP_US = {
    "NVLink": {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)},
    "PCIe": {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)},
    "network": {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)},
}
_PROTOCOLS = ("LL", "LL128", "Simple")
_BANDWIDTH = {"ring": (0.25, 0.92, 1.0), "tree": (0.92 / 3.8, 0.92 * 0.92, 0.92)}
_SWITCH_STEP_US = 25.0
_SWITCH_CHANNELS = 16
"""What NCCL says of itself on 8 × H100: "24 coll channels, 16 nvls channels" (logs of 2023 and later)."""
LEAST_OF_A_CHANNEL = 2**15
"""Bytes: with less for each channel NCCL leaves some out. 512 threads × 64 bytes (protocol Simple), src/enqueue.cc."""
FILLED = 2**19
"""Bytes of each channel that a hop between nodes waits for before it goes on: a slice of NCCL's buffers, an eighth of
4 MiB (NCCL_BUFFSIZE). Where trees and switches reach over nodes, their pipeline fills with so much on its way up, and
again on its way down."""


@dataclass(frozen=True)
class Choice:
    """What NCCL would do for one collective: "ring", "tree" or "switch", the protocol, and the seconds it takes."""

    algorithm: str
    protocol: str
    seconds: float

    @property
    def name(self) -> str:
        """Both, as "ring LL128"."""
        return f"{self.algorithm} {self.protocol}".strip()


def choose(
    collective: str, nbytes: float, nodes: int, per_node: int, inside: Link, network: Link, cards: float
) -> Choice:
    """The fastest way for one collective.

    Args:
        collective: "all-reduce", "reduce-scatter", "all-gather", "broadcast" or "reduce".
        nbytes: size of the whole tensor, in bytes.
        nodes, per_node: how many nodes take part, and how many GPUs of each.
        inside: link between GPUs of a node, with its ``family``.
        network: what ONE network card does. (Of both, the bandwidths that rings reach: ``Link.for_collectives``.)
        cards: network cards of a node that take part, at least one (perhaps shared with others: ``Link.shared_by``).
    """
    choices = ways(collective, nbytes, nodes, per_node, inside, network, cards)
    best = min(choices, key=lambda choice: choice.seconds)
    fill = 0.0
    if nodes > 1 and best.algorithm != "ring":
        hops = 2 * (1 + math.log2(nodes))
        in_flight = min(nbytes, FILLED * channels(best.algorithm, nbytes, nodes, inside, network, cards))
        fill = hops * in_flight / (cards * network.bytes_per_s)
    return replace(best, seconds=best.seconds + inside.start_s + fill)


def ways(
    collective: str, nbytes: float, nodes: int, per_node: int, inside: Link, network: Link, cards: float
) -> list[Choice]:
    """Every algorithm with every protocol; the arguments are those of ``choose``. (Without what it takes to begin.)"""
    between = cards * network.bytes_per_s
    bus = min([inside.bytes_per_s] * (per_node > 1) + [between] * (nodes > 1))
    choices = [_ring(collective, nbytes, nodes, per_node, inside, network, bus, i) for i in range(3)]
    if collective != "all-reduce":
        return choices
    # A node of two sends a tensor once, half of it up one tree and half down another; in the middle of many, twice.
    crossing = 0.0 if nodes == 1 else (1 if nodes == 2 else 2) * nbytes / between
    inner = 0.0 if per_node == 1 else 2 * nbytes / inside.bytes_per_s
    hops = math.log2(nodes)
    for i in range(3):
        latency = _BASE_US["tree"][i] + 2 * (per_node - 1) * _STEP_US[inside.family]["tree"][i]
        latency += 2 * hops * _network_step_us("tree", network, i) if hops else 0
        moved = max(crossing, inner) / _BANDWIDTH["tree"][i]
        choices.append(Choice("tree", _PROTOCOLS[i], latency * 1e-6 + moved))
    if per_node > 4 and inside.switch_bytes_per_s:
        latency = (
            _BASE_US["ring"][2] + _SWITCH_STEP_US + (2 * hops * _network_step_us("tree", network, 2) if hops else 0)
        )
        moved = max(crossing, nbytes / inside.switch_bytes_per_s)
        choices.append(Choice("switch", "Simple", latency * 1e-6 + moved))
    return choices


def channels(algorithm: str, nbytes: float, nodes: int, inside: Link, network: Link, cards: float) -> int:
    """How many channels a collective uses: each is a block, with a multiprocessor of the GPU for itself.

    Args: as for ``choose``; and the algorithm that it has chosen. 0: not known for such links.
    """
    over_cards = math.ceil(network.channels * max(1, cards))
    most = _SWITCH_CHANNELS if algorithm == "switch" else inside.channels if nodes == 1 else over_cards
    return min(most, math.ceil(nbytes / LEAST_OF_A_CHANNEL))


def memory_traffic(collective: str, algorithm: str, nbytes: float, ranks: int) -> float:
    """Bytes that one GPU reads and writes in its memory for a collective.

    What is sent is read once, and what comes is written once. (Assumed: between one, if all that NCCL's buffers hold
    stays in the GPU's cache, and three for each byte received, if none of it does.)
    """
    if algorithm == "switch" or collective in ("broadcast", "reduce"):
        return 2 * nbytes
    rounds = 2 if collective == "all-reduce" else 1
    return 2 * rounds * nbytes * (ranks - 1) / ranks


def _ring(
    collective: str, nbytes: float, nodes: int, per_node: int, inside: Link, network: Link, bus: float, protocol: int
) -> Choice:
    ranks = nodes * per_node
    if collective in ("broadcast", "reduce"):
        steps, hops = ranks, nodes if nodes > 1 else 0
    else:
        rounds = 2 if collective == "all-reduce" else 1
        steps, hops = rounds * (ranks - 1), rounds * (nodes - 1)
    latency = _BASE_US["ring"][protocol]
    latency += (steps - hops) * _STEP_US[inside.family]["ring"][protocol]
    latency += hops * _network_step_us("ring", network, protocol) if hops else 0
    moved = nbytes * steps / ranks
    return Choice("ring", _PROTOCOLS[protocol], latency * 1e-6 + moved / (bus * _BANDWIDTH["ring"][protocol]))


def _network_step_us(algorithm: str, network: Link, protocol: int) -> float:
    """NCCL's figures are for InfiniBand, whose α is the last of them. What a slower network has more comes on top."""
    figures = _STEP_US[network.family][algorithm]
    return figures[protocol] + max(0.0, network.alpha_s * 1e6 - figures[2])
