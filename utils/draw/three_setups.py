"""The same program in three ways: one process, four on a node, two on each of two nodes."""

from __future__ import annotations

from utils.draw import palette
from utils.draw.clusters import node_text
from utils.draw.picture import Picture
from utils.draw.svg import Canvas


def three_setups(kind: str = "GPU") -> Picture:
    """1×1, 1×4 and 2×2 side by side: who has which rank and local rank, and the world size under each."""
    setups = [
        ("1 × 1", "one node, one process", 1, 1),
        ("1 × 4", "one node, four processes", 1, 4),
        ("2 × 2", "two nodes, two processes each", 2, 2),
    ]
    alt = "Three ways to run. " + " ".join(
        f"{name}, {words}, world size {n * m}: " + " ".join(node_text(i, m, kind) for i in range(n))
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
