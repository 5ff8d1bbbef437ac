"""Clusters as pictures: nodes with their devices and ranks, and what they talk over."""

from __future__ import annotations

from collections.abc import Collection

from utils import links
from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, text_width
from utils.links import Link

DEVICE_WIDTH, DEVICE_HEIGHT, GAP, MARGIN = 104, 78, 14, 18
PER_ROW = 4


def topology(
    nodes: int = 2,
    per_node: int = 2,
    inside: Link = links.NVLINK4,
    between: Link = links.ETHERNET_25,
    kind: str = "GPU",
    title: str | None = None,
    highlight: Collection[int] = (),
) -> Picture:
    """Nodes side by side, each with its devices, one rank on each device, and the links with their speeds.

    Args:
        nodes: 1 to 4.
        per_node: devices (and ranks) on each node, 1 to 8.
        inside: link between the devices of a node.
        between: link between nodes.
        kind: "GPU" or "CPU".
        highlight: ranks to mark.
    """
    if not (1 <= nodes <= 4 and 1 <= per_node <= 8):
        raise ValueError("this picture has room for 1 to 4 nodes with 1 to 8 devices each")
    columns = min(per_node, PER_ROW)
    rows = -(-per_node // PER_ROW)
    label = inside.label
    node_width = max(columns * (DEVICE_WIDTH + GAP) + GAP, (text_width(label, 12) + 24 if per_node > 1 else 0), 150)
    bus = 34 if per_node > 1 else 0
    node_height = 38 + rows * (DEVICE_HEIGHT + GAP) + bus + 6
    network = between.label
    width = max(nodes * (node_width + MARGIN) + MARGIN, text_width(network, 13) + 4 * MARGIN, 340)
    top = 46
    height = top + node_height + (78 if nodes > 1 else MARGIN)
    title = title or f"{nodes} × {per_node}: {_many(nodes, 'node')}, {_many(nodes * per_node, 'rank')}"
    alt = (
        f"{title}. "
        + " ".join(_node_text(n, per_node, kind) for n in range(nodes))
        + (f" Inside a node: {label}." if per_node > 1 else "")
        + (f" Between the nodes: {network}." if nodes > 1 else "")
        + (f" Marked: {_ranks(sorted(highlight))}." if highlight else "")
    )
    canvas = Canvas(width, height, title, alt)
    left = (width - nodes * node_width - (nodes - 1) * MARGIN) / 2
    middles = []
    for node in range(nodes):
        x = left + node * (node_width + MARGIN)
        middles.append(x + node_width / 2)
        canvas.box(x, top, node_width, node_height, fill=palette.NODE, radius=10)
        canvas.text(x + 14, top + 24, f"node {node}", size=14, anchor="start", bold=True)
        first = x + (node_width - columns * (DEVICE_WIDTH + GAP) + GAP) / 2
        bus_y = top + 38 + rows * (DEVICE_HEIGHT + GAP) + 6
        for local in range(per_node):
            rank = node * per_node + local
            row, column = divmod(local, PER_ROW)
            dx = first + column * (DEVICE_WIDTH + GAP)
            dy = top + 38 + row * (DEVICE_HEIGHT + GAP)
            if per_node > 1:
                side = dx + DEVICE_WIDTH / 2 if row == rows - 1 else dx + DEVICE_WIDTH + GAP / 2
                if row == rows - 1:
                    canvas.line([(side, dy + DEVICE_HEIGHT), (side, bus_y)], palette.GREEN, 3)
                else:
                    middle = dy + DEVICE_HEIGHT / 2
                    canvas.line([(dx + DEVICE_WIDTH, middle), (side, middle), (side, bus_y)], palette.GREEN, 3)
            _device(canvas, dx, dy, kind, rank, local, rank in highlight)
        if per_node > 1:
            canvas.box(x + 5, bus_y, node_width - 10, 24, label, fill="#D8F0E8", stroke=palette.GREEN, size=12)
    if nodes > 1:
        y = top + node_height + 30
        for middle in middles:
            canvas.line([(middle, top + node_height), (middle, y)], palette.VERMILION, 4)
        canvas.box(left, y, width - 2 * left, 28, network, fill="#FBE5D6", stroke=palette.VERMILION, size=13)
    return canvas.picture()


def _device(canvas: Canvas, x: float, y: float, kind: str, rank: int, local: int, marked: bool) -> None:
    canvas.box(x, y, DEVICE_WIDTH, DEVICE_HEIGHT)
    canvas.text(x + DEVICE_WIDTH / 2, y + 18, f"{kind} {local}", size=13)
    stroke, thick = (palette.VERMILION, 3.5) if marked else (palette.LINE, 1.2)
    canvas.box(
        x + 5,
        y + 25,
        DEVICE_WIDTH - 10,
        DEVICE_HEIGHT - 30,
        fill=palette.PROCESS,
        stroke=stroke,
        stroke_width=thick,
    )
    canvas.text(x + DEVICE_WIDTH / 2, y + 44, f"rank {rank}", size=15, bold=True)
    canvas.text(x + DEVICE_WIDTH / 2, y + 63, f"local rank {local}", size=12, colour=palette.MUTED)


def three_setups(kind: str = "GPU") -> Picture:
    """1×1, 1×4 and 2×2 side by side: who has which rank and local rank, and the world size under each."""
    setups = [
        ("1 × 1", "one node, one process", 1, 1),
        ("1 × 4", "one node, four processes", 1, 4),
        ("2 × 2", "two nodes, two processes each", 2, 2),
    ]
    alt = "Three ways to run. " + " ".join(
        f"{name}, {words}, world size {n * m}: " + " ".join(_node_text(i, m, kind) for i in range(n))
        for name, words, n, m in setups
    )
    canvas = Canvas(950, 366, "The same program, started in three ways", alt)
    for column, (name, words, nodes, per_node) in enumerate(setups):
        left, column_width = 20 + column * 308, 294
        middle = left + column_width / 2
        canvas.text(middle, 62, name, size=18, bold=True)
        canvas.text(middle, 82, words, size=13, colour=palette.MUTED)
        node_height = 216 if nodes == 1 else 101
        for node in range(nodes):
            y = 94 + node * (node_height + 14)
            canvas.box(left, y, column_width, node_height, fill=palette.NODE, radius=10)
            canvas.text(left + 12, y + 20, f"node {node}", size=12, anchor="start", bold=True)
            _small_devices(canvas, left, y, column_width, node_height, node, per_node, kind)
        canvas.text(middle, 340, f"world size {nodes * per_node}", size=16, bold=True)
    return canvas.picture()


def _small_devices(
    canvas: Canvas, left: float, top: float, width: float, height: float, node: int, per_node: int, kind: str
) -> None:
    """The devices of one node of ``three_setups``, two in a row."""
    columns = min(2, per_node)
    rows = -(-per_node // 2)
    step_x, step_y = 132, 90
    x0 = left + (width - columns * step_x + 14) / 2
    y0 = top + 24 + (height - 24 - rows * step_y + 20) / 2 - 2
    for local in range(per_node):
        row, column = divmod(local, 2)
        x, y = x0 + column * step_x, y0 + row * step_y
        canvas.box(x, y, 118, 68, fill=palette.DEVICE)
        canvas.text(x + 59, y + 17, f"{kind} {local}", size=12)
        canvas.box(x + 5, y + 22, 108, 41, fill=palette.PROCESS)
        canvas.text(x + 59, y + 39, f"rank {node * per_node + local}", size=14, bold=True)
        canvas.text(x + 59, y + 56, f"local rank {local}", size=12, colour=palette.MUTED)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _node_text(node: int, per_node: int, kind: str) -> str:
    first = node * per_node
    if per_node == 1:
        return f"Node {node} has one {kind}, with rank {first} (local rank 0)."
    last = first + per_node - 1
    return f"Node {node} has {per_node} {kind}s, with ranks {first} to {last} (local ranks 0 to {per_node - 1})."
