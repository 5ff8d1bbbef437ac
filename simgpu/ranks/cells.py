"""Simulated GPUs for ``%%ranks --gpu``: what ``utils.ranks.provider`` asks of them, in a rank and in the notebook."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import torch

from simgpu.cluster import Cluster, current, exists
from simgpu.hardware import gpu, link
from simgpu.ranks.cluster import RankCluster
from simgpu.ranks.joining import join
from simgpu.ranks.refusals import BACKEND
from simgpu.report.profile import Profile
from simgpu.time.phases import COMMUNICATION

MOST = 200_000
"""Pieces of work that are kept of a cell: the last ones."""


class CellProfile(Profile):
    """All that a cell does. Messages that nobody waits for do not keep it from ending."""

    def __init__(self) -> None:
        super().__init__()
        self._work = deque(maxlen=MOST)

    def _wait(self) -> None:
        Cluster.synchronize(self.cluster)

    def plain(self) -> dict[str, Any]:
        """Everything a picture needs, as plain data that other processes understand."""
        cluster: Any = self.cluster
        name = f"rank {cluster.rank}"
        default = cluster.own[0].default_stream
        spans = []
        for work in self._work:
            copies = default not in work.queues and re.search("copy|cat", work.name)  # FSDP2's, for its collectives
            role = COMMUNICATION if copies else work.phase
            label = work.region or (work.name if work.phase == COMMUNICATION else "")
            if work.end > work.start:
                spans.append((name, work.start - self._began, work.end - self._began, role, label))
        (series,) = self.memory_series()
        memory = (list(series.times), {kind: list(held) for kind, held in series.bytes_by_kind.items()})
        return {
            **{"name": name, "began": self._began, "elapsed": self.elapsed, "caption": self.caption},
            **{"spans": spans, "memory": memory},
        }


_last: CellProfile | None = None


def take(options: dict[str, Any], rank: int, size: int, nodes: int) -> tuple[torch.device, str]:
    """In a rank: its GPU, and the backend of its process group."""
    network = options["network"] or None
    cluster = join(options["gpu"], nodes, numbers=not options["shapes"], network=network, rank=rank, world_size=size)
    cluster.way_to_numbers = "leave --shapes out"
    return torch.device("simgpu", cluster.local_rank), BACKEND


def begin(notes: list[Any]) -> None:
    """Before a cell: it begins on all ranks when the last one has ended what it did before."""
    global _last
    _last = None
    if not (exists() and isinstance(current(), RankCluster)):
        return
    latest = max([note for note in notes if note is not None], default=0.0)
    current().clock.act(lambda lane: lane.reach(latest), current().first)
    _last = CellProfile()
    _last.__enter__()


def end() -> float | None:
    """After a cell: when it has ended here, in simulated seconds."""
    if _last is None:
        return None
    _last.__exit__()
    return _last.cluster.now()


def recorded() -> dict[str, Any] | None:
    """What this rank did in the last cell."""
    return None if _last is None else _last.plain()


def connected(options: dict[str, Any], size: int, nodes: int) -> str:
    """In the notebook: what connects the ranks' GPUs, for the status."""
    kind = gpu(options["gpu"])
    network = link(options["network"]) if options["network"] else kind.network
    inside = [f"{kind.peer.name} inside a node"] if size > nodes else []
    return ", ".join([*inside, *([f"{network.name} between nodes"] if nodes > 1 else [])])


def picture(kind: str, recorded: list[dict[str, Any] | None]) -> Any:
    """In the notebook: the last cell on all ranks, "timeline" or "memory".

    Raises:
        ValueError: nothing has happened on the simulated GPUs.
    """
    from simgpu.memory.pictures import MemorySeries, memory_over_time
    from utils import draw
    from utils.draw.timeline import Span

    ranks = [rank for rank in recorded if rank is not None]
    if not any(rank["spans"] for rank in ranks):
        raise ValueError("the last cell did nothing on the simulated GPUs, so there is nothing to draw")
    zero = min(rank["began"] for rank in ranks)
    shifts = {rank["name"]: rank["began"] - zero for rank in ranks}
    caption = f"simulated: {ranks[0]['caption']}" if "simulated" not in ranks[0]["caption"] else ranks[0]["caption"]
    if kind == "memory":
        series = []
        for rank in ranks:
            times, by_kind = rank["memory"]
            series.append(MemorySeries(rank["name"], [time + shifts[rank["name"]] for time in times], by_kind))
        return memory_over_time(series, caption=caption)
    spans = [
        Span(lane, start + shifts[lane], end + shifts[lane], role, label)
        for rank in ranks
        for lane, start, end, role, label in rank["spans"]
    ]
    until = max(rank["elapsed"] + shifts[rank["name"]] for rank in ranks)
    return draw.timeline(spans, caption=caption, lanes=list(shifts), start=0.0, end=until)
