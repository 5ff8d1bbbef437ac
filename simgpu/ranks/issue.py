"""One communication that this rank's host has issued, on its way into simulated time.

It begins when its last rank has issued it and what it reads is there. The ranks tell each other, in real time, when
each of them is ready (``meet``); the latest is the beginning, for all. At the end: how long it takes, and which of a
GPU's links it uses.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from simgpu import install
from simgpu.ranks.cluster import Members, RankCluster, here
from simgpu.ranks.sizes import Sizes
from simgpu.tensors.tensor import SimTensor
from simgpu.time import happens_before
from simgpu.time.phases import COMMUNICATION, in_backward
from simgpu.time.work import Share, Timeline, Work
from utils.hardware.links import point_to_point

_LONGEST = 300
NEVER = float("inf")
"""When a rank is ready whose own call cannot work."""


class Issue:
    """The host launches a communication on a stream: what it waits for on this rank.

    Args:
        reads, writes: tensors.
        after: it can not begin before, in simulated seconds.
    """

    def __init__(
        self,
        name: str,
        stream: Timeline,
        reads: Sequence[SimTensor],
        writes: Sequence[SimTensor],
        after: float = 0.0,
    ) -> None:
        cluster = here()
        clock, current = cluster.clock, cluster.current_stream()
        install.name_stages()
        clock.settle()  # one thread works here, so everything before this has its time now
        lane = clock.lane(cluster.first)
        launch_s = clock.backward_launch_s if in_backward() else clock.launch_s
        lane.time += launch_s
        self.work = Work(
            name=name,
            phase=COMMUNICATION,
            place="",
            seconds=0.0,
            gpus=(cluster.first,),
            queues=(stream,),
            dtype=next((str(tensor.dtype).removeprefix("torch.") for tensor in (*reads, *writes)), ""),
            lane=lane.name,
            region=lane.region,
            launch_s=launch_s,
            launched=lane.time,
        )
        written = [work for tensor in (*reads, *writes) if (work := tensor.allocation.last_write) is not None]
        before = [stream.time, current.time, *(work.end for work in written)]
        self.until = 0.0  # when all of what it sends is there
        if cluster.overlap is not None and written:
            self.until = max(work.end for work in written)
            own = 0.0 if stream is current else stream.time
            before = [own, *map(cluster.overlap.first, written)]
        self.ready = self.work.ready = max(lane.time, after, *before)
        waited = "stream" if stream is current else "wait()"
        happens_before.launched(self.work, reads, writes, after=(current,), waited=waited)

    def lasting(self, seconds: float) -> float:
        """``seconds``, or longer if it waits for the last part of what it sends."""
        overlap = here().overlap
        return seconds if overlap is None else max(seconds, self.until + seconds / overlap.chunks - self.ready)

    def place(
        self,
        start: float,
        seconds: float,
        nbytes: int,
        outputs: Sequence[SimTensor],
        place: str,
        how: str = "",
        share: Share | None = None,
    ) -> Work:
        """Put it on the timeline, where ``start`` is what all ranks have agreed on, and ``share`` what it takes."""
        cluster, work = here(), self.work
        if share is not None and cluster.overlap is None:
            cluster.own[0].sharing.take(start, start + seconds, share)
        work.start, work.seconds, work.end = start, seconds, start + seconds
        work.nbytes, work.place, work.how = nbytes, place, how
        (stream,) = work.queues
        if cluster.overlap is not None and stream is cluster.current_stream():
            cluster.overlap.wait(stream, work)
        else:
            stream.reach(work.end)
        for tensor in outputs:
            tensor.allocation.last_write = work if cluster.overlap is None else None  # (until the block ends)
        cluster.clock.record(work)
        return work


def meet(group: Any, sizes: Sizes, ready: float, seconds: float, moves: bool = True) -> tuple[float, float, bool]:
    """All ranks of a group say what they are about to do, when they are ready, how long it takes, and if numbers move.

    (Those do that are processes.)

    Returns:
        The latest time, the longest, and whether numbers move on all ranks.

    Raises:
        RuntimeError: they are not about to do the same; the sentence says who does what.
    """
    cluster = here()
    meeting, there = cluster.meeting_of(group), cluster.members_of(group).processes
    if len(there) == 1:
        return ready, seconds, moves
    row = [ready, seconds, not moves, zlib.crc32(sizes.same.encode()), sizes.balance]
    rows = torch.zeros(len(there), len(row), dtype=torch.float64, device="cpu")
    rows[there.index(cluster.rank)] = torch.tensor(row, dtype=torch.float64, device="cpu")
    meeting.allreduce([rows], ReduceOp.SUM).wait()  # faster than an all-gather, and as exact: x + 0 is x
    times, durations, stays, marks, balances = rows.t().tolist()
    if len(set(marks)) > 1:
        wrong = ", ".join(str(r) for r, time in zip(there, times, strict=True) if time == NEVER)
        said = (
            f"a collective is wrong on rank {wrong}" if wrong else "the ranks of a group called different collectives"
        )
        raise RuntimeError(f"{said}, which would hang on real GPUs: {_who_does_what(meeting, there, sizes.same)}")
    if sum(balances):
        does = _who_does_what(meeting, there, str(sizes))
        raise RuntimeError(f"what one rank gives must be what the other expects, or real GPUs would hang: {does}")
    return max(times), max(durations), not any(stays)


def _who_does_what(meeting: Any, there: Sequence[int], what: str) -> str:
    text = torch.tensor(list(what.encode()[:_LONGEST].ljust(_LONGEST)), dtype=torch.uint8, device="cpu")
    all_ = [torch.empty_like(text) for _ in there]
    meeting.allgather([all_], [text]).wait()
    does: dict[str, list[int]] = {}
    for rank, text in zip(there, all_, strict=True):
        does.setdefault(bytes(text.tolist()).decode(errors="replace").strip(), []).append(rank)
    return "; ".join(f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {it}" for it, ranks in does.items())


def exchange_seconds(cluster: RankCluster, members: Members, sent: Sequence[int], received: Sequence[int]) -> float:
    """Seconds that this rank needs for messages to and from all members at once, as all-to-all, gather and scatter are.

    Both directions of a link work at the same time, and so do the links inside a node and its network card. In an
    all-to-all, GPUs of a node share the cards that they have together.

    Args:
        sent, received: bytes for, and from, each member.
    """
    me = cluster.node_of(cluster.rank)
    slowest = 0.0
    for near, link in ((True, cluster.inside), (False, cluster.network)):
        ranks = enumerate(members.ranks)
        others = [i for i, rank in ranks if rank != cluster.rank and (cluster.node_of(rank) == me) == near]
        out, back = sum(sent[i] for i in others), sum(received[i] for i in others)
        users = members.size / members.nodes / members.cards if out and back and not near else 1.0  # of a card
        if out or back:
            moved = point_to_point(max(out, back), link.for_collectives().shared_by(users))
            slowest = max(slowest, cluster.inside.start_s + moved)
    return slowest


def message_seconds(cluster: RankCluster, peer: int, nbytes: int) -> float:
    """Seconds of one message to or from another rank."""
    same_node = cluster.node_of(peer) == cluster.node_of(cluster.rank)
    link = cluster.inside if same_node else cluster.network
    return cluster.inside.start_s + point_to_point(nbytes, link.for_copies())


def _ends(cluster: RankCluster, members: Members) -> list[tuple[bool, ...]]:
    """This GPU's ends of the links that a collective uses: those to the ranks of its node, those to other nodes."""
    return [end for end in cluster.link_free if (members.size > members.nodes if end[0] else members.nodes > 1)]


def links_free(cluster: RankCluster, members: Members) -> float:
    """When this GPU's ends of the links that a collective uses have nothing more to do."""
    return max((cluster.link_free[end] for end in _ends(cluster, members)), default=0.0)


def take_links(cluster: RankCluster, members: Members, until: float) -> None:
    """A collective keeps this GPU's ends of its links busy, in both directions.

    What waits for the network leaves room on faster links inside the node: others use them meanwhile, and here as if
    they were alone.
    """
    network, inside = (link.for_collectives().bytes_per_s for link in (cluster.network, cluster.inside))
    waits = members.nodes > 1 and members.cards * network < inside
    for end in _ends(cluster, members):
        if not (waits and end[0]):
            cluster.link_free[end] = max(cluster.link_free[end], until)


def end_for(cluster: RankCluster, peer: int, out: bool) -> tuple[bool, bool]:
    """This GPU's end of a link, for a message to (``out``) or from another rank: a key of ``link_free``."""
    return cluster.node_of(peer) == cluster.node_of(cluster.rank), out
