"""All-reduce from nothing, over send and recv: five algorithms, and a count of what each rank says.

Afterwards every rank's tensor holds the sum of all ranks' tensors. The algorithms (p ranks, n bytes):

- ``naive``: rank 0 collects all tensors, adds them up and sends the sum back. 2(p−1) steps, n bytes each.
- ``tree``: a binomial tree: sums go up, the total goes down. 2·⌈log₂ p⌉ steps, n bytes each.
- ``ring``: a reduce-scatter and an all-gather around a ring. 2(p−1) steps, n/p bytes each. Source: Patarasuk and
  Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
- ``halving``: recursive halving and doubling: in each step of the reduce-scatter, half of what is left goes to a
  partner. 2·log₂ p steps, and the bytes of the ring. Source: Thakur, Rabenseifner and Gropp: Optimization of Collective
  Communication Operations in MPICH, 2005.
- ``hierarchical``: a reduce-scatter inside each node, a ring between the nodes, an all-gather inside each node.

``hardware.links`` has the formulas of their times. Two different runs of an algorithm, and all ranks of one run, get
the same bits; two algorithms may differ in the last bit of floats, because they add in another order.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@dataclass
class Traffic:
    """What one rank sent and received in one all-reduce.

    Args:
        steps: in how many steps this rank took part. In a step it sends one message, or receives one, or both at
            the same time. The all-reduce takes as many steps as its busiest rank.
        sent_to: bytes by receiver (global rank).
        received: bytes.
        in_a_row: bytes that passed this rank's link one after another: of a step, the larger of both directions.
    """

    steps: int = 0
    sent_to: Counter[int] = field(default_factory=Counter)
    received: int = 0
    in_a_row: int = 0

    @property
    def sent(self) -> int:
        """Bytes that this rank sent."""
        return sum(self.sent_to.values())


class Talk:
    """How the ranks of one all-reduce talk to each other. A rank's **place** is its index in ``ranks``.

    Args:
        ranks: the global ranks that take part.
        traffic: where to count.
    """

    def __init__(self, ranks: Sequence[int], traffic: Traffic | None = None) -> None:
        self.ranks = list(ranks)
        self.place = self.ranks.index(dist.get_rank())
        self.traffic = Traffic() if traffic is None else traffic

    @property
    def count(self) -> int:
        """p, how many ranks take part."""
        return len(self.ranks)

    def among(self, places: Sequence[int]) -> Talk:
        """The talk of some of these ranks, counted together with this one."""
        return Talk([self.ranks[place] for place in places], self.traffic)

    def step(
        self,
        send: Tensor | None = None,
        to: int = 0,
        receive: Tensor | None = None,
        source: int = 0,
        skip: bool = False,
    ) -> None:
        """One step: send a tensor to one place while receiving another from one place (either may be None).

        Args:
            skip: do not count it.
        """
        out, into = self.ranks[to], self.ranks[source]
        messages = [dist.P2POp(dist.isend, send, out)] if send is not None and len(send) else []
        if receive is not None and len(receive):  # (both sides know the lengths: nothing is sent for an empty chunk)
            messages.append(dist.P2POp(dist.irecv, receive, into))
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()
        if not skip:
            sent, received = (0 if one is None else one.nbytes for one in (send, receive))
            self.traffic.steps += 1
            self.traffic.sent_to[out] += sent
            self.traffic.received += received
            self.traffic.in_a_row += max(sent, received)

    def check(self, tensor: Tensor) -> None:
        """Every rank learns every rank's length and type, before anything else is sent; this is not counted.

        Each rank passes on all that it knows, first to its neighbour, then two places on, then four …

        Raises:
            ValueError: on every rank, if lengths or types differ.
        """
        known = torch.zeros(self.count, 2, dtype=torch.int64, device=tensor.device)
        known[self.place, 0], known[self.place, 1] = tensor.numel(), 1 + DTYPES.index(tensor.dtype)
        distance = 1
        while distance < self.count:
            heard = torch.empty_like(known)
            right, left = (self.place + distance) % self.count, (self.place - distance) % self.count
            self.step(known, right, heard, left, skip=True)
            known = torch.maximum(known, heard)
            distance *= 2
        if len({tuple(one) for one in known.tolist()}) > 1:
            have = ", ".join(
                f"rank {rank} has {length:,} {str(DTYPES[code - 1]).removeprefix('torch.')}"
                for rank, (length, code) in zip(self.ranks, known.tolist(), strict=True)
            )
            raise ValueError(f"all_reduce needs the same length and type on all ranks, but {have}")


def all_reduce(
    tensor: Tensor, algorithm: str = "ring", ranks: Sequence[int] | None = None, per_node: int | None = None
) -> Traffic:
    """Every rank's tensor becomes the sum of all ranks' tensors, in place. All of ``ranks`` must call it.

    Args:
        tensor: any shape and type; the same length and type on all ranks.
        algorithm: a name in ``ALGORITHMS``.
        ranks: the global ranks that take part. None: all.
        per_node: ranks of a node, for "hierarchical". None: what the launcher says (LOCAL_WORLD_SIZE).

    Returns:
        What this rank sent and received.

    Raises:
        ValueError: on every rank, if lengths or types differ, or nodes are not of equal size.
    """
    talk = Talk(range(dist.get_world_size()) if ranks is None else ranks)
    per_node = per_node or int(os.environ.get("LOCAL_WORLD_SIZE", talk.count))
    if algorithm == "hierarchical" and talk.count % per_node:
        raise ValueError(f"{talk.count} ranks are not nodes of {per_node}: hierarchical needs nodes of equal size")
    work = ALGORITHMS[algorithm]
    with torch.no_grad():
        talk.check(tensor)
        flat = tensor.reshape(-1)
        work(talk, flat, per_node)
        if flat.data_ptr() != tensor.data_ptr():  # the tensor's memory has gaps: we worked on a copy
            tensor.copy_(flat.view_as(tensor))
    return talk.traffic


def naive(talk: Talk, flat: Tensor, per_node: int = 1) -> None:
    """All to place 0, one after another; then back."""
    others = range(1, talk.count)
    if talk.place == 0:
        buffer = torch.empty_like(flat)
        for place in others:
            talk.step(receive=buffer, source=place)
            flat += buffer
        for place in others:
            talk.step(send=flat, to=place)
    else:
        talk.step(send=flat, to=0)
        talk.step(receive=flat, source=0)


def tree(talk: Talk, flat: Tensor, per_node: int = 1) -> None:
    """Sums go up a binomial tree, the total goes down. The children of place i are i+1, i+2, i+4, …"""
    distance, buffer = 1, torch.empty_like(flat)
    while distance < talk.count and not talk.place & distance:
        if talk.place + distance < talk.count:
            talk.step(receive=buffer, source=talk.place + distance)
            flat += buffer
        distance *= 2
    if talk.place:
        talk.step(send=flat, to=talk.place - distance)
        talk.step(receive=flat, source=talk.place - distance)
    while distance > 1:
        distance //= 2
        if talk.place + distance < talk.count:
            talk.step(send=flat, to=talk.place + distance)


def ring(talk: Talk, flat: Tensor, per_node: int = 1) -> None:
    """Reduce-scatter, then all-gather, around a ring."""
    ring_reduce_scatter(talk, flat)
    ring_all_gather(talk, flat)


def ring_reduce_scatter(talk: Talk, flat: Tensor) -> Tensor:
    """p−1 steps, after which each place holds the sum of one chunk: its own, with the number of its place.

    Returns:
        That chunk, a view of ``flat``. (The other chunks hold parts of sums.)
    """
    chunks, i, p = flat.tensor_split(talk.count), talk.place, talk.count
    buffer = torch.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(1, p):
        mine, theirs = chunks[(i - step) % p], chunks[(i - step - 1) % p]
        heard = buffer[: len(theirs)]
        talk.step(mine, (i + 1) % p, heard, (i - 1) % p)
        theirs += heard
    return chunks[i]


def ring_all_gather(talk: Talk, flat: Tensor) -> None:
    """p−1 steps, in which the chunk of each place goes around to all others."""
    chunks, i, p = flat.tensor_split(talk.count), talk.place, talk.count
    for step in range(p - 1):
        talk.step(chunks[(i - step) % p], (i + 1) % p, chunks[(i - step - 1) % p], (i - 1) % p)


def halving(talk: Talk, flat: Tensor, per_node: int = 1) -> None:
    """Recursive halving (reduce-scatter), then recursive doubling (all-gather).

    This needs a power of two. From p ranks the last few give their tensor to a partner before, and get the sum after.
    """
    power = 1 << (talk.count.bit_length() - 1)
    partner = talk.place ^ power
    if talk.place >= power:
        talk.step(send=flat, to=partner)
        talk.step(receive=flat, source=partner)
        return
    if partner < talk.count:
        buffer = torch.empty_like(flat)
        talk.step(receive=buffer, source=partner)
        flat += buffer
    chunks, halves = flat.tensor_split(power), []
    bounds = [0, *torch.tensor([len(chunk) for chunk in chunks]).cumsum(0).tolist()]
    start, end, distance = 0, power, power // 2
    while distance:
        middle = (start + end) // 2
        low, high = flat[bounds[start] : bounds[middle]], flat[bounds[middle] : bounds[end]]
        upper = bool(talk.place & distance)
        keep, give = (high, low) if upper else (low, high)
        heard = torch.empty_like(keep)
        talk.step(give, talk.place ^ distance, heard, talk.place ^ distance)
        keep += heard
        halves.append((keep, give, talk.place ^ distance))
        start, end = (middle, end) if upper else (start, middle)
        distance //= 2
    for keep, give, place in reversed(halves):
        talk.step(keep, place, give, place)
    if partner < talk.count:
        talk.step(send=flat, to=partner)


def hierarchical(talk: Talk, flat: Tensor, per_node: int) -> None:
    """Inside the nodes, between the nodes, inside the nodes."""
    node, local = divmod(talk.place, per_node)
    inside = talk.among(range(node * per_node, (node + 1) * per_node))
    between = talk.among(range(local, talk.count, per_node))
    ring(between, ring_reduce_scatter(inside, flat))
    ring_all_gather(inside, flat)


ALGORITHMS: dict[str, Callable[[Talk, Tensor, int], None]] = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "halving": halving,
    "hierarchical": hierarchical,
}
"""Every algorithm by its name."""
