"""The eight collectives in one picture: what four ranks hold before and after each."""

from __future__ import annotations

from collections.abc import Sequence

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, number

RANKS = 4
LETTERS = "abcd"
CELL, ROW, PANEL, GAP, TOP, HEIGHT = 27, 25, 310, 14, 46, 168
FILLS = ("#CFE3F5", "#FBE3C0", "#CDEBDF", "#F3D9E8")
SUM = "#FFFFFF"

Tensors = list[list[str]]
"""For each rank the pieces that it holds: "a0" is piece 0 of rank 0, "Σ0" the sum of all pieces 0, "" nothing."""


def _own() -> Tensors:
    return [[f"{letter}{i}" for i in range(RANKS)] for letter in LETTERS]


def _at(rank: int, pieces: Sequence[str]) -> Tensors:
    """Only one rank has something."""
    return [list(pieces) if each == rank else [""] * RANKS for each in range(RANKS)]


def _diagonal(pieces: Sequence[str]) -> Tensors:
    """Rank i has piece i only."""
    return [[piece if i == rank else "" for i, piece in enumerate(pieces)] for rank in range(RANKS)]


_SUMS = [f"Σ{i}" for i in range(RANKS)]
_PIECES = [f"{letter}{i}" for i, letter in enumerate(LETTERS)]
COLLECTIVES: dict[str, tuple[Tensors, Tensors, str]] = {
    "broadcast": (_at(0, _own()[0]), [_own()[0]] * RANKS, "one rank's tensor to all"),
    "scatter": (_at(0, _own()[0]), _diagonal(_own()[0]), "one rank's tensor, a piece to each"),
    "gather": (_diagonal(_PIECES), _at(0, _PIECES), "a piece from each, to one rank"),
    "reduce": (_own(), _at(0, _SUMS), "the sum, on one rank"),
    "all-gather": (_diagonal(_PIECES), [_PIECES] * RANKS, "a piece from each, to all"),
    "all-reduce": (_own(), [_SUMS] * RANKS, "the sum, on all"),
    "reduce-scatter": (_own(), _diagonal(_SUMS), "the sum, a piece on each"),
    "all-to-all": (_own(), [list(column) for column in zip(*_own(), strict=True)], "piece i of each, to rank i"),
}
"""Name → what the ranks hold before, after, and a few words."""


def collectives() -> Picture:
    """Eight panels: four ranks as rows, their pieces as cells, before on the left and after on the right."""
    alt = "The eight collectives, on four ranks with tensors of four pieces. " + " ".join(
        f"{name.capitalize()}: {words}." for name, (_, _, words) in COLLECTIVES.items()
    )
    width, height = 3 * GAP + 2 * PANEL, TOP + 4 * (HEIGHT + GAP) + 24
    canvas = Canvas(width, height, "The eight collectives: four ranks, before → after", alt)
    for i, (name, (before, after, words)) in enumerate(COLLECTIVES.items()):
        row, column = divmod(i, 2)
        _panel(canvas, GAP + column * (PANEL + GAP), TOP + row * (HEIGHT + GAP), name, before, after, words)
    canvas.text(width / 2, height - 12, "a colour for each rank's own numbers; Σ: added up over all ranks", size=12.5,
                colour=palette.MUTED)  # fmt: skip
    return canvas.picture()


def _panel(canvas: Canvas, x: float, y: float, name: str, before: Tensors, after: Tensors, told: str) -> None:
    canvas.box(x, y, PANEL, HEIGHT, fill=palette.NODE, radius=8)
    canvas.text(x + 12, y + 22, name, size=15, anchor="start", bold=True)
    canvas.text(x + 12, y + HEIGHT - 11, told, size=12.5, anchor="start")
    words: list[tuple[float, float, str]] = []
    paths: dict[str, str] = {}  # colour → rectangles
    for rank in range(RANKS):
        top = y + 34 + rank * ROW
        words.append((x + 30, top + 15, f"rank {rank}"))
        for left, pieces in ((x + 56, before[rank]), (x + 82 + RANKS * CELL, after[rank])):
            if not all(pieces):  # an empty frame for what this rank does not hold
                width = RANKS * CELL - 2
                canvas.box(left, top, width, ROW - 4, fill=palette.PANEL, dash="2 3", stroke=palette.GREY, radius=2)
            for i, piece in enumerate(pieces):
                if piece:
                    fill = FILLS[LETTERS.index(piece[0])] if piece[0] in LETTERS else SUM
                    corner = f"M{number(left + i * CELL)} {number(top)}"
                    paths[fill] = f"{paths.get(fill, '')}{corner}h{CELL - 2}v{ROW - 4}h{2 - CELL}z"
                    words.append((left + i * CELL + CELL / 2 - 1, top + 15, piece))
    for fill, path in paths.items():
        canvas.shape(path, fill)
    canvas.labels(words, 11.5, halo=False)
    middle, left = y + 32 + RANKS * ROW / 2, x + 60 + RANKS * CELL
    canvas.line([(left, middle), (left + 18, middle)], palette.GREEN, 2.5, arrow="end")
