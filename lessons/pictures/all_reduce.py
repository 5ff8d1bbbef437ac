"""All-reduce: which chunk every rank holds after each step, who sends to whom, how long a gradient travels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from utils.draw import palette
from utils.draw.charts import bars, lines
from utils.draw.frame import EDGE, Frame, size_text
from utils.draw.palette import Role
from utils.draw.picture import Picture
from utils.draw.svg import Canvas
from utils.hardware import links
from utils.hardware.links import Link
from utils.training.models import RESNET50_GRADIENT_BYTES

OWN = Role("only its own", palette.GREY, "..")
PART = Role("a part of the sum", palette.ORANGE, "\\\\")
WHOLE = Role("the whole sum", palette.GREEN, "xx")
CAPTION = "Rows are ranks, columns are chunks. A bold frame: it has just arrived."

State = Sequence[Sequence[int]]
"""What each rank's chunks hold: ``state[rank][chunk]``, whole numbers."""


def chunks(states: Sequence[State], step: int, title: str = "", caption: str = CAPTION, width: int = 900) -> Picture:
    """A state of an all-reduce as a grid of numbers; what has changed since the state before is framed.

    Args:
        states: the state at the start, and after each step.
        step: the one to draw, with arrows from the left neighbour of each rank that received.
        title: heading.
        caption: below the picture.
        width: of the picture.
    """
    ranks, columns = len(states[0]), len(states[0][0])
    names, gap = 58, 22  # pixels for "rank 3"; between the rows, for the arrows
    cell_width, cell_height, inset = min(150.0, (width - 2 * EDGE - names) / columns), 40.0, 1.5
    frame = Frame(width, title, caption, (OWN, PART, WHOLE))
    when = f"after step {step}" if step else "at the start"
    told = "; ".join(f"rank {rank} holds {', '.join(map(str, row))}" for rank, row in enumerate(states[step]))
    alt = f"{when[0].upper()}{when[1:]}: {told}."
    canvas = frame.canvas(40 + ranks * (cell_height + gap), alt, "All-reduce, step by step")
    x0, y0 = EDGE + names + (width - 2 * EDGE - names - columns * cell_width) / 2, frame.top + 20
    canvas.text(x0 + columns * cell_width / 2, y0 - 5, when, 13)
    for rank in range(ranks):
        y = y0 + rank * (cell_height + gap)
        canvas.text(x0 - 8, y + cell_height / 2 + 5, f"rank {rank}", 13, anchor="end")
        for chunk in range(columns):
            value, x = states[step][rank][chunk], x0 + chunk * cell_width
            new = step > 0 and value != states[step - 1][rank][chunk]
            look = {"stroke": palette.INK, "stroke_width": 3.0} if new else {"stroke_width": 0.8}
            canvas.box(
                *(x + inset, y + inset, cell_width - 2 * inset, cell_height - 2 * inset),
                *(str(value), palette.DEVICE, _role(states, value, rank, chunk)),
                size=15, bold=new, radius=3, plate=True, **look,
            )  # fmt: skip
            if new:
                middle, above = x + cell_width / 2, y - gap
                canvas.line([(middle, above if rank else y - 14), (middle, y)], width=2.2, arrow="end")
                if not rank:  # from the last rank around to the first
                    bottom = y0 + ranks * (cell_height + gap) - gap
                    canvas.line([(middle, bottom), (middle, bottom + 14)], width=2.2)
    return canvas.picture()


def _role(states: Sequence[State], value: int, rank: int, chunk: int) -> Role:
    if value == sum(row[chunk] for row in states[0]):
        return WHOLE
    return OWN if value == states[0][rank][chunk] else PART


# --- Ranks in circles: who sends to whom in a ring, or in several rings at once ---

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
    canvas = frame.canvas(2 * radius + HIGH + 40, _rings_text(rings, per_node), "Ranks in circles")
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


def _rings_text(rings: Mapping[str, Sequence[int]], per_node: int | None) -> str:
    nodes = f" Ranks of a node: {per_node}." if per_node else ""
    told = (f"{name or 'ring'}: {' → '.join(map(str, order))} → {order[0]}." for name, order in rings.items())
    return f"Each rank sends to the next one of its ring.{nodes} {' '.join(told)}"


# --- Charts of the α–β model: all numbers are computed by ``utils.hardware.links`` ---

NOTE = "computed with the α–β model from data-sheet speeds (utils/hardware/links), not measured"

_PLACES = {"network": "network between nodes", "PCIe": "PCIe inside a node", "NVLink": "NVLink inside a node"}


def _place(link: Link) -> Role:
    """The link's family as a role: its colour in all pictures, with its place for the legend."""
    return Role(_PLACES[link.family], palette.LINKS[link.family].colour, "")


def time_text(milliseconds: float) -> str:
    """A time given in milliseconds, with three digits: "32.8 ms"."""
    return f"{milliseconds:.3g} ms" if milliseconds >= 0.1 else f"{milliseconds * 1000:.3g} µs"


def who_talks_over_what() -> Picture:
    """The ladder of links: how long each needs for the gradient of ResNet-50."""
    nbytes = RESNET50_GRADIENT_BYTES
    times = {link.label: 1e3 * links.point_to_point(nbytes, link) for link in links.ALL}
    return bars(
        times,
        "milliseconds (logarithmic scale)",
        f"Sending one ResNet-50 gradient ({size_text(nbytes)}) over one link",
        log=True,
        text=time_text,
        roles={link.label: _place(link) for link in links.ALL},
        note=NOTE,
    )


def all_reduce_on_nodes(
    nbytes: float = RESNET50_GRADIENT_BYTES,
    nodes: Sequence[int] = (1, 2, 4, 8, 16),
    per_node: int = 8,
    inside: Link = links.NVLINK4,
    between: Link = links.ETHERNET_25,
    nics_per_node: int = 1,
) -> Picture:
    """Time of one all-reduce against the number of nodes: one ring, a ring through each NIC, two levels."""
    curves = {}
    for rings, name in (1, "one ring through all GPUs"), (nics_per_node, "a ring through each NIC"):
        times = [1e3 * links.flat_ring_all_reduce(nbytes, n, per_node, inside, between, rings) for n in nodes]
        curves |= {name: (nodes, times)} if rings > 1 or not curves else {}
    tall = [1e3 * links.hierarchical_all_reduce(nbytes, n, per_node, inside, between, nics_per_node) for n in nodes]
    curves["two levels"] = (nodes, tall)
    nics = f"{nics_per_node} NIC{'s' * (nics_per_node > 1)}"
    title = f"All-reduce of {size_text(nbytes)}: {per_node} GPUs and {nics} per node\n{inside.name}, {between.name}"
    return lines(curves, "number of nodes", "milliseconds", title, log_x=True, note=NOTE)
