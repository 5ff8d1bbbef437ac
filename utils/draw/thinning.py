"""From thousands of spans to few rectangles.

First, spans that follow each other without a gap and say the same become one. Then spans too short to be seen alone
are drawn together: within a strip of a few pixels they stand sorted by kind, each kind as wide as all its spans in the
strip, so that nothing looks busier or more idle than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from utils.draw.spans import ORDER

MOST_PIECES = 1800  # rectangles in one picture: about 75 kB
STRIP = 12.0  # pixels, at least, for spans that are drawn together


@dataclass
class Piece:
    """A rectangle to be: pixels from the left end of the lane, what it stands for."""

    left: float
    right: float
    role: str
    label: str
    alone: bool = True  # False: several spans in one strip

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def says(self) -> tuple[str, str, bool]:
        return self.role, self.label, self.alone


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours with the same role and label become one, if what lies between them can be neglected."""
    joined: list[Piece] = []
    swallowed = 0.0
    for piece in pieces:
        if joined and joined[-1].says == piece.says:
            gap = piece.left - joined[-1].right
            if gap < 0.5 and swallowed + max(0.0, gap) <= 0.01 * (piece.right - joined[-1].left):
                joined[-1].right = piece.right
                swallowed += max(0.0, gap)
                continue
        joined.append(Piece(piece.left, piece.right, *piece.says))
        swallowed = 0.0
    return joined


def _strip(small: float) -> float:
    return max(STRIP, 4 * small)


def _strips(pieces: Sequence[Piece], small: float) -> tuple[list[Piece], int]:
    """Pieces narrower than ``small`` are drawn together in strips of at most ``_strip(small)`` pixels.

    In a strip the kinds stand side by side, each as wide as all its pieces together; what is left over is idle.

    Returns:
        The pieces to draw, and how many are not drawn alone.
    """
    result: list[Piece] = []
    together: list[Piece] = []
    count = 0

    def finish() -> None:
        nonlocal count
        if len(together) > 1:
            count += len(together)
            x = together[0].left
            for role in sorted({piece.role for piece in together}, key=ORDER.__getitem__):
                wide = sum(piece.width for piece in together if piece.role == role)
                result.append(Piece(x, x + wide, role, "", alone=False))
                x += wide
        else:
            result.extend(together)
        together.clear()

    for piece in pieces:
        if piece.width >= small:
            finish()
            result.append(piece)
            continue
        if together and piece.right - together[0].left > _strip(small):
            finish()
        together.append(piece)
    finish()
    return _joined(result), count


def thinned(rows: list[list[Piece]]) -> tuple[list[list[Piece]], int]:
    """All rows of the picture with so few pieces that it stays small; how many are drawn together."""
    rows = [_joined(row) for row in rows]
    small = 1.0
    while True:
        strips = [_strips(row, small) for row in rows]
        if sum(len(row) for row, _ in strips) <= MOST_PIECES:
            return [row for row, _ in strips], sum(count for _, count in strips)
        small *= 1.4
