"""Clusters as pictures: nodes with their devices and ranks, and what they talk over."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from utils.draw import palette
from utils.draw.frame import caption_clause
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, text_width, wrap
from utils.hardware import links
from utils.hardware.links import Link

DEVICE_WIDTH, DEVICE_HEIGHT, GAP, MARGIN = 104, 78, 14, 18
PER_ROW = 4
MOST_NODES, MOST_DEVICES = 4, 8


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
    if not (1 <= nodes <= MOST_NODES and 1 <= per_node <= MOST_DEVICES):
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
        + " ".join(node_text(n, per_node, kind) for n in range(nodes))
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
        first = node * per_node

        def device(i: int, x: float, y: float, first: int = first) -> None:
            _device(canvas, x, y, kind, first + i, i, first + i in highlight)

        _node(canvas, x, top, (node_width, node_height), f"node {node}", per_node, _RANKS, label, device)
    if nodes > 1:
        y = top + node_height + 30
        for middle in middles:
            canvas.line([(middle, top + node_height), (middle, y)], palette.VERMILION, 4)
        canvas.box(left, y, width - 2 * left, 28, network, fill="#FBE5D6", stroke=palette.VERMILION, size=13)
    return canvas.picture()


def cluster_topology(
    nodes: int,
    gpus_per_node: int,
    gpu: str,
    inside: Link | None,
    between: Link | None,
    host: Link | None = None,
    *,
    title: str | None = None,
    caption: str = "simulated",
) -> Picture:
    """A cluster and its links with their speeds; GPUs are counted through all nodes, as in the timelines.

    Args:
        nodes: any number; four are drawn.
        gpus_per_node: any number; eight are drawn.
        gpu: what kind, for example "H100".
        inside: link between the GPUs of a node; None only for one GPU.
        between: link between nodes; None only for one node.
        host: link between the host (processor and main memory) and each GPU; None: the host is not drawn.
        title: None: the numbers of nodes and GPUs.
        caption: "simulated", or the hardware's name.

    Raises:
        ValueError: if a number is below 1 or a link is missing.
    """
    if nodes < 1 or gpus_per_node < 1:
        raise ValueError(f"a cluster has at least one node with one GPU, not {nodes} × {gpus_per_node}")
    if nodes > 1 and between is None:
        raise ValueError(f"{nodes} nodes need a link between them")
    if gpus_per_node > 1 and inside is None:
        raise ValueError(f"{gpus_per_node} GPUs on a node need a link inside the node")
    drawn, shown = min(nodes, MOST_NODES), min(gpus_per_node, MOST_DEVICES)
    label = inside.label if inside and gpus_per_node > 1 else ""
    bus = host.label if host else ""
    columns, rows = min(shown, PER_ROW), -(-shown // PER_ROW)
    per_line = min(drawn, 2)
    lines = -(-drawn // per_line)
    look = _GPUS
    model = (wrap(gpu, look.width - 4, 12) or [""])[0]  # the first words of a long name
    model = model if text_width(model, 12) <= look.width - 4 else ""
    longest = max(text_width(f"host, over {bus}", 12) if host else 0, text_width(label, 12))
    node_width = max(columns * (look.width + look.gap) + look.gap, longest + 24, 150)
    node_height = 38 + rows * (look.height + look.gap) + (34 if label else 0) + (_HOST_HEIGHT if host else 0) + 2
    beside = 126 if nodes > drawn else 0
    network = between.label if between and nodes > 1 else ""
    inner = max(per_line * (node_width + MARGIN) - MARGIN + beside, text_width(network, 13) + 2 * MARGIN, 320)
    each = f"{_many(gpus_per_node, 'GPU')}{' each' if nodes > 1 else ''} ({gpu})"
    title = title or f"{_many(nodes, 'node')} with {each}"
    width = max(inner + 2 * MARGIN, text_width(title, 17, bold=True) + 2 * MARGIN)
    left = (width - inner) / 2
    top, network_gap = 46, 24
    network_y = top + node_height + network_gap
    height = top + node_height + (28 + network_gap if network else 0) + 32
    if lines > 1:
        height += network_gap + node_height
    alt = (
        f"{title.rstrip('.')}{caption_clause(caption)}. "
        + (f"{_many(nodes, 'node')} with {each}, " if each not in title else "")
        + f"{_many(nodes * gpus_per_node, 'GPU')} in all."
        + (f" Inside a node: {label}." if label else "")
        + (f" Between the nodes: {network}." if network else "")
        + (f" Between the host and each of its GPUs: {bus}." if host else "")
    )
    canvas = Canvas(width, height, title, alt)
    first_x = left + (inner - beside - per_line * (node_width + MARGIN) + MARGIN) / 2
    for node in range(drawn):
        line, column = divmod(node, per_line)
        x = first_x + column * (node_width + MARGIN)
        y = top if line == 0 else network_y + 28 + network_gap
        if network:
            ends = (y + node_height, network_y) if line == 0 else (y, network_y + 28)
            canvas.line([(x + node_width / 2, end) for end in ends], palette.VERMILION, 4)

        def device(i: int, x: float, y: float, first: int = node * gpus_per_node) -> None:
            if i == MOST_DEVICES - 1 and gpus_per_node > MOST_DEVICES:
                canvas.box(x, y, look.width, look.height, ["…", f"{gpus_per_node - i} more"], fill=palette.PANEL,
                           dash="5 4", size=12)  # fmt: skip
                return
            canvas.box(x, y, look.width, look.height)
            canvas.text(x + look.width / 2, y + 19, f"GPU {first + i}", size=12.5, bold=True)
            canvas.text(x + look.width / 2, y + 36, model, size=12, colour=palette.MUTED)

        size = node_width, node_height
        _node(canvas, x, y, size, f"node {node}", shown, look, label, device, f"host, over {bus}" if host else "")
    if network:
        canvas.box(left, network_y, inner, 28, network, fill="#FBE5D6", stroke=palette.VERMILION, size=13)
    if beside:
        x = left + inner - beside + MARGIN
        words = ["…", f"{nodes - drawn:,} more", "node" if nodes - drawn == 1 else "nodes"]
        canvas.line([(x + (beside - MARGIN) / 2, top + node_height), (x + (beside - MARGIN) / 2, network_y)],
                    palette.VERMILION, 4)  # fmt: skip
        canvas.box(x, top, beside - MARGIN, node_height, words, fill=palette.PANEL, dash="5 4", size=14, radius=10)
    canvas.text(width / 2, height - 12, caption, size=12, colour=palette.MUTED)
    return canvas.picture()


@dataclass(frozen=True)
class _Look:
    """Sizes of the devices in a node: width, height, and the gap between them."""

    width: float
    height: float
    gap: float


_RANKS = _Look(DEVICE_WIDTH, DEVICE_HEIGHT, GAP)
_GPUS = _Look(72, 46, 20)
_HOST_HEIGHT = 40


def _node(  # noqa: PLR0913
    canvas: Canvas,
    x: float,
    y: float,
    size: tuple[float, float],
    name: str,
    count: int,
    look: _Look,
    label: str,
    device: Callable[[int, float, float], None],
    host: str = "",
) -> None:
    """A node with its devices, in rows of four, and the link between them (green); with ``host``: the host (blue).

    Args:
        x, y: top left corner.
        size: width and height.
        count: how many devices; ``device`` draws the i-th at a place.
        label: what is written on the link, if there is more than one device.
        host: what is written on the host.
    """
    node_width, node_height = size
    columns, rows = min(count, PER_ROW), -(-count // PER_ROW)
    canvas.box(x, y, node_width, node_height, fill=palette.NODE, radius=10)
    canvas.text(x + 14, y + 24, name, size=14, anchor="start", bold=True)
    first = x + (node_width - columns * (look.width + look.gap) + look.gap) / 2
    devices_y = y + 38 + (_HOST_HEIGHT if host else 0)
    bus_y = devices_y + rows * (look.height + look.gap) + (6 if look is _RANKS else 0)
    for i in range(count):
        row, column = divmod(i, PER_ROW)
        dx = first + column * (look.width + look.gap)
        dy = devices_y + row * (look.height + look.gap)
        last = row == rows - 1
        if count > 1:
            beside = dx + look.width + look.gap * (0.3 if host else 0.5)
            side = dx + look.width / 2 if last else beside
            if last:
                canvas.line([(side, dy + look.height), (side, bus_y)], palette.GREEN, 3)
            else:
                middle = dy + look.height / 2
                canvas.line([(dx + look.width, middle), (side, middle), (side, bus_y)], palette.GREEN, 3)
        if host:
            host_y, middle, beside = y + 62, dy + look.height / 2, dx - look.gap * 0.3
            points = [(dx + look.width / 2, dy)] * (row == 0) or [(dx, middle), (beside, middle)]
            canvas.line([*points, (points[-1][0], host_y)], palette.BLUE, 3)
        device(i, dx, dy)
    if count > 1:
        canvas.box(x + 5, bus_y, node_width - 10, 24, label, fill="#D8F0E8", stroke=palette.GREEN, size=12)
    if host:
        canvas.box(x + 5, y + 38, node_width - 10, 24, host, fill=palette.DEVICE, stroke=palette.BLUE, size=12)


def _device(canvas: Canvas, x: float, y: float, kind: str, rank: int, local: int, marked: bool) -> None:
    canvas.box(x, y, DEVICE_WIDTH, DEVICE_HEIGHT)
    canvas.text(x + DEVICE_WIDTH / 2, y + 18, f"{kind} {local}", size=13)
    look: dict[str, Any] = {"stroke": palette.VERMILION, "stroke_width": 3.5} if marked else {}
    canvas.box(x + 5, y + 25, DEVICE_WIDTH - 10, DEVICE_HEIGHT - 30, fill=palette.PROCESS, **look)
    canvas.text(x + DEVICE_WIDTH / 2, y + 44, f"rank {rank}", size=15, bold=True)
    canvas.text(x + DEVICE_WIDTH / 2, y + 63, f"local rank {local}", size=12, colour=palette.MUTED)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def node_text(node: int, per_node: int, kind: str) -> str:
    first = node * per_node
    if per_node == 1:
        return f"Node {node} has one {kind}, with rank {first} (local rank 0)."
    last = first + per_node - 1
    return f"Node {node} has {per_node} {kind}s, with ranks {first} to {last} (local ranks 0 to {per_node - 1})."
