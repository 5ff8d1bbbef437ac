"""Ranks in circles: who sends to whom in a ring, or in several rings at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

INSIDE, BETWEEN = palette.LINKS["NVLink"].colour, palette.LINKS["network"].colour
NODES = (palette.DEVICE, palette.PROCESS, palette.NODE)
BOX, HIGH = 28.0, 24.0  # pixels of a rank


def circles(
    rings: Mapping[str, Sequence[int]],
    per_node: int | None = None,
    title: str = "",
    caption: str = "",
    width: int = 900,
) -> Picture:
    """One circle for each ring; an arrow goes from each rank to the next one in its order.

    Args:
        rings: heading → ranks, in the order of the ring.
        per_node: ranks of a node: nodes have a colour each, and arrows between nodes are broad and have the network's.
            None: no nodes.
        title, caption: above and below.
        width: pixels.
    """
    panel = (width - 2 * EDGE) / len(rings)
    radius = min(panel / 2 - BOX / 2 - 6, 105.0)
    frame = Frame(width, title, caption, ())
    canvas = frame.canvas(2 * radius + HIGH + 40, _alt_text(rings, per_node), "Ranks in circles")
    for i, (heading, order) in enumerate(rings.items()):
        middle = EDGE + (i + 0.5) * panel
        canvas.text(middle, frame.top + 12, heading, size=13, bold=True)
        _circle(canvas, middle, frame.top + 28 + radius + HIGH / 2, radius, order, per_node)
    return canvas.picture()


def _circle(canvas: Canvas, x: float, y: float, radius: float, order: Sequence[int], per_node: int | None) -> None:
    def at(place: float) -> tuple[float, float]:
        angle = 2 * math.pi * place / len(order)
        return x + radius * math.sin(angle), y - radius * math.cos(angle)

    gap = 0.65 * BOX * len(order) / (2 * math.pi * radius)  # half a rank, as a part of the way to the next
    pieces = max(6, 64 // len(order))  # of an arrow, so that it looks round
    for place, rank in enumerate(order):
        between = per_node is not None and rank // per_node != order[(place + 1) % len(order)] // per_node
        colour = palette.INK if per_node is None else BETWEEN if between else INSIDE
        way = [at(place + gap + (1 - 2 * gap) * step / pieces) for step in range(pieces + 1)]
        canvas.line(way, colour, 3.6 if between else 2, arrow="end")
    for place, rank in enumerate(order):
        left, top = at(place)
        fill = NODES[rank // per_node % len(NODES)] if per_node else palette.DEVICE
        canvas.box(left - BOX / 2, top - HIGH / 2, BOX, HIGH, str(rank), fill, size=14, bold=True, radius=6)


def _alt_text(rings: Mapping[str, Sequence[int]], per_node: int | None) -> str:
    nodes = f" Ranks of a node: {per_node}." if per_node else ""
    told = (f"{name or 'ring'}: {' → '.join(map(str, order))} → {order[0]}." for name, order in rings.items())
    return f"Each rank sends to the next one of its ring.{nodes} {' '.join(told)}"
