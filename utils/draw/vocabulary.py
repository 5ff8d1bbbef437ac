"""The picture that explains the words: node, GPU, process, rank, local rank, node rank, world size."""

from __future__ import annotations

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

_ALT = (
    "The words of distributed training, on two nodes with two GPUs each. A node is one machine. On each "
    "GPU works one process, a running Python program. The four processes have the ranks 0, 1, 2 and 3: "
    "a rank is the number of a process in the whole world. The local rank is the number of a process on "
    "its own node: 0 and 1 on each node. The node rank is the number of the node: 0 and 1. The world "
    "size is the number of all processes: 4, not the number of nodes."
)

_CALL = palette.BLUE


def words() -> Picture:
    """Two nodes with two GPUs each, and every word of the field pointing at the thing that it means."""
    canvas = Canvas(990, 404, "What the words mean: 2 nodes × 2 processes", _ALT)
    top, node_width, device_width = 54, 264, 114
    middles = []
    for node, left in enumerate((219, 507)):
        canvas.box(left, top, node_width, 236, fill=palette.NODE, radius=12)
        canvas.text(left + node_width / 2, top + 26, f"node {node}", size=17, bold=True)
        for local in range(2):
            x = left + 12 + local * (device_width + 12)
            middle = x + device_width / 2
            middles.append(middle)
            canvas.box(x, top + 42, device_width, 182)
            canvas.text(middle, top + 64, f"GPU {local}", size=15)
            canvas.box(x + 8, top + 76, device_width - 16, 138, fill=palette.PROCESS)
            canvas.text(middle, top + 98, "process", size=14)
            canvas.text(middle, top + 144, f"rank {2 * node + local}", size=20, bold=True)
            canvas.text(middle, top + 192, f"local rank {local}", size=14)

    _call(canvas, top + 20, "node", "one machine", "", tip=219)
    _call(canvas, top + 84, "GPU", "does the arithmetic", "", tip=231)
    _call(canvas, top + 150, "process", "one running Python", "", tip=239)
    _call(canvas, top + 20, "node rank", "the node's number", "GROUP_RANK", tip=672)
    _call(canvas, top + 101, "rank", "the number in the world", "RANK", tip=743, dip=top + 137)
    _call(canvas, top + 187, "local rank", "the number on the node", "LOCAL_RANK", tip=752)

    y = top + 262
    for middle in middles:
        canvas.line([(middle, y), (middle, top + 216)], _CALL, arrow="end")
    canvas.line([(middles[0], y), (middles[-1], y)], _CALL)
    canvas.text(495, y + 26, "world size 4", size=17, bold=True, colour=_CALL)
    canvas.text(495, y + 46, "the number of processes, not of nodes", size=13)
    canvas.text(495, y + 66, "WORLD_SIZE", size=12, mono=True, colour=palette.MUTED)
    return canvas.picture()


def _call(canvas: Canvas, y: float, word: str, meaning: str, variable: str, tip: float, dip: float = 0) -> None:
    """A word beside the picture, what it means, its environment variable, and an arrow to the thing."""
    on_left = tip < 400
    x, anchor = (188, "end") if on_left else (802, "start")
    canvas.text(x, y + 5, word, size=17, anchor=anchor, bold=True, colour=_CALL)
    canvas.text(x, y + 24, meaning, size=13, anchor=anchor)
    if variable:
        canvas.text(x, y + 42, variable, size=12, anchor=anchor, mono=True, colour=palette.MUTED)
    start = (x + 6, y) if on_left else (x - 6, y)
    canvas.line([start, (tip, dip or y)], _CALL, arrow="end")
