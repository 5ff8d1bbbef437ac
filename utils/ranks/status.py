"""``%ranks``: a table of the ranks that live now."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import psutil

from utils.ranks.words import text_table

if TYPE_CHECKING:
    from utils.ranks.world import World

COLUMNS = ("rank", "node", "local rank", "pid", "device", "memory of its own")


@dataclass
class Status:
    """The ranks of a world: one row each, and a sentence above them."""

    sentence: str
    rows: list[tuple[str, ...]]

    def __repr__(self) -> str:
        if not self.rows:
            return self.sentence
        return "\n".join([self.sentence, *text_table([COLUMNS, *self.rows], right=True)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
        return f"<p>{escape(self.sentence)}</p>{table}"


def world_status(world: World | None) -> Status:
    """What ``%ranks`` shows."""
    if world is None or not world.open:
        return Status("There are no ranks now. A cell that begins with %%ranks -n 4 starts four.", [])
    dead = world.dead_ranks()
    per_node = world.size // world.nodes
    rows = []
    for rank, (pid, device) in enumerate(zip(world.pids, world.devices, strict=True)):
        memory = dead.get(rank) or _own_memory(pid)
        rows.append((str(rank), str(rank // per_node), str(rank % per_node), str(pid), device, memory))
    nodes = f" presented as {world.nodes} nodes" if world.nodes > 1 else ""
    return Status(f"{world.size} ranks{nodes}, backend {world.backend}.", rows)


def _own_memory(pid: int) -> str:
    """Memory that only this process uses: what it shares with its siblings (torch's code, say) is not counted."""
    try:
        process = psutil.Process(pid)
        try:
            used = process.memory_full_info().uss
        except (psutil.AccessDenied, AttributeError):
            used = process.memory_info().rss
    except psutil.NoSuchProcess:
        return "gone"
    return f"{used / 2**20:.0f} MB"
