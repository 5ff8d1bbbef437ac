"""The map of the kinds of parallelism: what each one splits, and what it sends."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, text_width

LAYERS = 4
PANEL_WIDTH, PANEL_GAP, LEFT = 200, 10, 15
GPU_WIDTH, GPU_TOP, LAYER_TOP, LAYER_STEP, LAYER_HEIGHT = 70, 98, 122, 34, 26
SLOT, LANE = 10.8, 15


@dataclass(frozen=True)
class Kind:
    """One kind of parallelism, as it is told in its panel.

    Args:
        name: what it is called.
        splits, sends: the words under the picture.
        lanes: what GPU 0 and GPU 1 do during one step, a letter for each slot of time:
            f forward, b backward, c communication, "." idle; F and B: the same, with communication beneath.
    """

    name: str
    splits: str
    sends: str
    lanes: tuple[str, str]


KINDS: tuple[Kind, ...] = (
    Kind("data", "the batch", "gradients, once per step (all-reduce)", ("ffffbBBBc",) * 2),
    Kind("model (layers)", "the layers", "activations forward, gradients back; one GPU waits for the other",
         ("ffff........bbbb", "....ffffbbbb....")),
    Kind("pipeline", "the layers, and the batch into micro-batches", "the same; both GPUs work at once",
         ("ffff..bbbb", ".ffffbbbb.")),
    Kind("tensor", "every layer", "activations, in every layer (all-reduce)", ("fcfcfcfcbcbcbcbc",) * 2),
    Kind("sharded", "the batch and the parameters", "parameters (all-gather), gradients (reduce-scatter)",
         ("cFFFfbBBBBc",) * 2),
)  # fmt: skip
ROLES = {"f": palette.FORWARD, "b": palette.BACKWARD, "c": palette.COMMUNICATION, ".": palette.IDLE}


def parallelism_map(names: Collection[str] | None = None) -> Picture:
    """Panels with the same model of four layers on two GPUs, split in up to five ways.

    Args:
        names: of the kinds to show, at least two; None: all. They keep their order.

    Raises:
        ValueError: a kind is unknown, or there are fewer than two.
    """
    kinds = [kind for kind in KINDS if names is None or kind.name in names]
    if len(kinds) < 2 or len(kinds) != len(KINDS if names is None else set(names)):
        raise ValueError(f"show two or more of {', '.join(kind.name for kind in KINDS)}; not {names}")
    words = {2: "Two", 3: "Three", 4: "Four", 5: "Five"}[len(kinds)]
    alt = f"{words} ways to split the training of one model of four layers over two GPUs. " + " ".join(
        f"{kind.name.capitalize()} parallelism splits {kind.splits}; it sends {kind.sends}." for kind in kinds
    )
    width = max(2 * LEFT + len(kinds) * (PANEL_WIDTH + PANEL_GAP) - PANEL_GAP, 640)
    title = f"{words} ways to split the work: four layers on two GPUs"
    canvas = Canvas(width, 486, title, alt)
    first = (width - len(kinds) * (PANEL_WIDTH + PANEL_GAP) + PANEL_GAP) / 2
    for number, kind in enumerate(kinds):
        left = first + number * (PANEL_WIDTH + PANEL_GAP)
        canvas.box(left, 44, PANEL_WIDTH, 386, fill=palette.NODE, radius=10)
        canvas.text(left + PANEL_WIDTH / 2, 66, kind.name, size=16, bold=True)
        _panel(canvas, left, kind.name)
        _lanes(canvas, left + 8, 290, kind.lanes)
        y = canvas.paragraph(left + 10, 344, f"Splits: {kind.splits}.", PANEL_WIDTH - 16, size=12.5, bold=True)
        canvas.paragraph(left + 10, y + 3, f"Sends: {kind.sends}.", PANEL_WIDTH - 16, size=12.5)
    x = (width - sum(62 + text_width(role.name, 13) for role in ROLES.values())) / 2 + 12
    for role in ROLES.values():
        canvas.box(x, 440, 30, 18, role=role, radius=2)
        canvas.text(x + 38, 454, role.name, size=13, anchor="start")
        x += 62 + text_width(role.name, 13)
    canvas.text(width / 2, 475, "bars: one step on GPU 0 and GPU 1, a sketch without scale, time →", size=13,
                colour=palette.MUTED)  # fmt: skip
    return canvas.picture()


def _lanes(canvas: Canvas, left: float, top: float, lanes: tuple[str, str]) -> None:
    """Two bars, one for each GPU: what it does during one step."""
    for gpu, lane in enumerate(lanes):
        start = 0
        for letter, run in itertools.groupby(lane):
            length = len(list(run))
            x, y, wide = left + start * SLOT, top + gpu * (LANE + 3), length * SLOT
            canvas.box(x, y, wide, LANE, role=ROLES[letter.lower()], radius=0, stroke_width=0.8)
            if letter.isupper():
                canvas.box(x, y + 0.6 * LANE, wide, 0.4 * LANE, role=ROLES["c"], radius=0, stroke_width=0.8)
            start += length


def _panel(canvas: Canvas, left: float, name: str) -> None:
    """The two GPUs of one panel: batch on top, layers below it, and what is sent between them (green)."""
    first, second = left + 13, left + PANEL_WIDTH - 13 - GPU_WIDTH
    for gpu, x in enumerate((first, second)):
        canvas.box(x, GPU_TOP, GPU_WIDTH, 180)
        canvas.text(x + GPU_WIDTH / 2, GPU_TOP + 173, f"GPU {gpu}", size=12)
    draw = {"data": _data, "model (layers)": _layers, "pipeline": _pipeline, "tensor": _tensor, "sharded": _sharded}
    draw[name](canvas, first, second)


def _layer_y(layer: int) -> float:
    return LAYER_TOP + layer * LAYER_STEP - 14


def _layer(canvas: Canvas, x: float, layer: int, left: float = 0, right: float = 1, text: str = "") -> None:
    """A layer, or the part of it between ``left`` and ``right`` (0 to 1), in the GPU box at ``x``."""
    inner = GPU_WIDTH - 12
    canvas.box(x + 6 + left * inner, _layer_y(layer), (right - left) * inner, LAYER_HEIGHT, text,
               fill=palette.SKY_BLUE, size=12, radius=3)  # fmt: skip


def _ghost(canvas: Canvas, x: float, layer: int, left: float, right: float) -> None:
    """The place of a part that this GPU does not keep."""
    inner = GPU_WIDTH - 12
    canvas.box(x + 6 + left * inner, _layer_y(layer), (right - left) * inner, LAYER_HEIGHT, fill=palette.PANEL,
               dash="3 3", radius=3)  # fmt: skip


def _batch(canvas: Canvas, x: float, text: str) -> None:
    canvas.box(x, 74, GPU_WIDTH, 18, text, role=None, fill=palette.YELLOW, size=12, radius=3)


def _wire(canvas: Canvas, first: float, second: float, y: float, arrow: str = "both") -> None:
    canvas.line([(first + GPU_WIDTH - 6, y), (second + 6, y)], palette.GREEN, 2.5, arrow=arrow)


def _data(canvas: Canvas, first: float, second: float) -> None:
    for x in (first, second):
        _batch(canvas, x, "½ batch")
        for layer in range(LAYERS):
            _layer(canvas, x, layer, text=f"layer {layer + 1}")
    _wire(canvas, first, second, GPU_TOP + 154)


def _layers(canvas: Canvas, first: float, second: float) -> None:
    _batch(canvas, first, "batch")
    _cut(canvas, first, second)


def _cut(canvas: Canvas, first: float, second: float) -> None:
    """Layers 1 and 2 on the first GPU, 3 and 4 on the second."""
    for layer in range(LAYERS):
        _layer(canvas, first if layer < 2 else second, layer, text=f"layer {layer + 1}")
    y = (_layer_y(1) + LAYER_HEIGHT + _layer_y(2)) / 2
    corner = second + GPU_WIDTH / 2
    canvas.line([(first + GPU_WIDTH / 2, y - 4), (first + GPU_WIDTH / 2, y + 20), (second + 6, y + 20)],
                palette.GREEN, 3, arrow="end")  # fmt: skip
    canvas.line([(corner, y + 4), (corner, y - 16), (first + GPU_WIDTH - 6, y - 16)], palette.GREEN, 3, arrow="end",
                dash="5 3")  # fmt: skip


def _pipeline(canvas: Canvas, first: float, second: float) -> None:
    width = GPU_WIDTH / 4
    for part in range(4):
        canvas.box(first + part * width, 74, width, 18, str(part + 1), fill=palette.YELLOW, size=12, radius=3)
    _cut(canvas, first, second)


def _tensor(canvas: Canvas, first: float, second: float) -> None:
    for gpu, x in enumerate((first, second)):
        _batch(canvas, x, "batch")
        for layer in range(LAYERS):
            _ghost(canvas, x, layer, 0.5 - gpu / 2, 1 - gpu / 2)
            _layer(canvas, x, layer, gpu / 2, 0.5 + gpu / 2, text=f"½ {layer + 1}")
    for layer in range(LAYERS):
        _wire(canvas, first, second, _layer_y(layer) + LAYER_HEIGHT / 2)


def _sharded(canvas: Canvas, first: float, second: float) -> None:
    for gpu, x in enumerate((first, second)):
        _batch(canvas, x, "½ batch")
        for layer in range(LAYERS):
            if layer == 1:  # the layer in work: gathered for a moment
                _layer(canvas, x, layer, text="layer 2")
            else:
                _ghost(canvas, x, layer, 0.5 - gpu / 2, 1 - gpu / 2)
                _layer(canvas, x, layer, gpu / 2, 0.5 + gpu / 2, text=f"½ {layer + 1}")
    _wire(canvas, first, second, _layer_y(1) + LAYER_HEIGHT / 2)
