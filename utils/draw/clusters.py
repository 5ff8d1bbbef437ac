"""A cluster as a picture: nodes with their devices and ranks, and what they talk over."""

from __future__ import annotations

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, text_width
from utils.hardware import links
from utils.hardware.links import Link

DEVICE_WIDTH, DEVICE_HEIGHT, GAP, MARGIN = 104, 78, 14, 18
PER_ROW = 4
MOST_NODES, MOST_DEVICES = 4, 8
TOP = 46


def topology(
    nodes: int = 2,
    per_node: int = 2,
    inside: Link = links.NVLINK4,
    between: Link = links.ETHERNET_25,
    kind: str = "GPU",
    title: str | None = None,
) -> Picture:
    """Nodes side by side, each with its devices, one rank on each device, and the links with their speeds.

    Args:
        nodes: 1 to 4.
        per_node: devices (and ranks) on each node, 1 to 8.
        inside: link between the devices of a node.
        between: link between nodes.
        kind: "GPU" or "CPU".
    """
    if not (1 <= nodes <= MOST_NODES and 1 <= per_node <= MOST_DEVICES):
        raise ValueError("this picture has room for 1 to 4 nodes with 1 to 8 devices each")
    columns, rows = min(per_node, PER_ROW), -(-per_node // PER_ROW)
    label, network = inside.label, between.label
    node_width = max(columns * (DEVICE_WIDTH + GAP) + GAP, (text_width(label, 12) + 24 if per_node > 1 else 0), 150)
    node_height = 44 + rows * (DEVICE_HEIGHT + GAP) + (34 if per_node > 1 else 0)
    width = max(nodes * (node_width + MARGIN) + MARGIN, text_width(network, 13) + 4 * MARGIN, 340)
    title = title or f"{nodes} × {per_node}: {_many(nodes, 'node')}, {_many(nodes * per_node, 'rank')}"
    alt = (
        f"{title}. "
        + " ".join(_node_text(n, per_node, kind) for n in range(nodes))
        + (f" Inside a node: {label}." if per_node > 1 else "")
        + (f" Between the nodes: {network}." if nodes > 1 else "")
    )
    canvas = Canvas(width, TOP + node_height + (78 if nodes > 1 else MARGIN), title, alt)
    left = (width - nodes * node_width - (nodes - 1) * MARGIN) / 2
    for node in range(nodes):
        x = left + node * (node_width + MARGIN)
        canvas.box(x, TOP, node_width, node_height, fill=palette.NODE, radius=10)
        canvas.text(x + 14, TOP + 24, f"node {node}", size=14, anchor="start", bold=True)
        _devices(canvas, x, node_width, kind, node * per_node, per_node, label)
    if nodes > 1:
        y = TOP + node_height + 30
        for node in range(nodes):
            middle = left + node * (node_width + MARGIN) + node_width / 2
            canvas.line([(middle, TOP + node_height), (middle, y)], palette.VERMILION, 4)
        canvas.box(left, y, width - 2 * left, 28, network, fill="#FBE5D6", stroke=palette.VERMILION, size=13)
    return canvas.picture()


def _devices(canvas: Canvas, x: float, width: float, kind: str, first: int, count: int, label: str) -> None:
    """A node's devices in rows of four, with their ranks from ``first`` on, and the link between them (green)."""
    columns, rows = min(count, PER_ROW), -(-count // PER_ROW)
    left = x + (width - columns * (DEVICE_WIDTH + GAP) + GAP) / 2
    bus_y = TOP + 44 + rows * (DEVICE_HEIGHT + GAP)
    for i in range(count):
        row, column = divmod(i, PER_ROW)
        dx, dy = left + column * (DEVICE_WIDTH + GAP), TOP + 38 + row * (DEVICE_HEIGHT + GAP)
        if count > 1 and row == rows - 1:
            canvas.line([(dx + DEVICE_WIDTH / 2, dy + DEVICE_HEIGHT), (dx + DEVICE_WIDTH / 2, bus_y)], palette.GREEN, 3)
        elif count > 1:
            middle, beside = dy + DEVICE_HEIGHT / 2, dx + DEVICE_WIDTH + GAP * 0.5
            canvas.line([(dx + DEVICE_WIDTH, middle), (beside, middle), (beside, bus_y)], palette.GREEN, 3)
        canvas.box(dx, dy, DEVICE_WIDTH, DEVICE_HEIGHT)
        canvas.text(dx + DEVICE_WIDTH / 2, dy + 18, f"{kind} {i}", size=13)
        canvas.box(dx + 5, dy + 25, DEVICE_WIDTH - 10, DEVICE_HEIGHT - 30, fill=palette.PROCESS)
        canvas.text(dx + DEVICE_WIDTH / 2, dy + 44, f"rank {first + i}", size=15, bold=True)
        canvas.text(dx + DEVICE_WIDTH / 2, dy + 63, f"local rank {i}", size=12, colour=palette.MUTED)
    if count > 1:
        canvas.box(x + 5, bus_y, width - 10, 24, label, fill="#D8F0E8", stroke=palette.GREEN, size=12)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _node_text(node: int, per_node: int, kind: str) -> str:
    first = node * per_node
    if per_node == 1:
        return f"Node {node} has one {kind}, with rank {first} (local rank 0)."
    last = first + per_node - 1
    return f"Node {node} has {per_node} {kind}s, with ranks {first} to {last} (local ranks 0 to {per_node - 1})."
