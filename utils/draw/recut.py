"""Which rows a rank that loads takes from which file: the rows of a tensor, cut anew for another number of ranks."""

from __future__ import annotations

import itertools

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.picture import Picture

CAPTION = "Each number is a row of the tensor. A band is one read: rows that lie side by side in one file."
CELL, BAND = 30, 74  # pixels: the height of a row's cell, and of the bands
NAME = 20  # pixels for the names above and below
WIDEST = 52.0


def shares(rows: int, ranks: int) -> list[range]:
    """As even as can be: the first ranks have one row more."""
    each, more = divmod(rows, ranks)
    firsts = [rank * each + min(rank, more) for rank in range(ranks + 1)]
    return [range(first, last) for first, last in itertools.pairwise(firsts)]


def recut(rows: int, saved: int, loaded: int, title: str = "", caption: str = CAPTION, width: int = 900) -> Picture:
    """The files of ``saved`` ranks on top, ``loaded`` ranks below, and between them a band for each read.

    Args:
        rows: of the tensor, cut as evenly as can be.
        saved: ranks that have saved, each a file.
        loaded: ranks that load.
        title: heading.
        caption: below the picture.
        width: pixels.

    Raises:
        ValueError: fewer rows than ranks.
    """
    if not 0 < max(saved, loaded) <= rows:
        raise ValueError(f"{rows} rows do not make {saved} files and {loaded} parts, each with a row at least")
    files, ranks = shares(rows, saved), shares(rows, loaded)
    gap = 22
    cell = min(WIDEST, (width - 2 * EDGE - gap * (max(saved, loaded) - 1)) / rows)
    frame = Frame(width, title, caption)
    canvas = frame.canvas(2 * NAME + 2 * CELL + BAND, _alt_text(files, ranks), "Rows cut anew")

    def left(parts: list[range], part: int, row: int) -> float:
        """Where a row begins, in the part in which it is."""
        whole = rows * cell + gap * (len(parts) - 1)
        return (width - whole) / 2 + row * cell + gap * part

    top = frame.top + NAME
    bottom = top + CELL + BAND
    for file, held in enumerate(files):
        for rank, wanted in enumerate(ranks):
            start, stop = max(held.start, wanted.start), min(held.stop, wanted.stop)
            if start < stop:
                above, below = left(files, file, start) + 3, left(ranks, rank, start) + 3
                wide = (stop - start) * cell - 6
                corners = f"h{wide:.1f} L{below + wide:.1f},{bottom - 3:.1f} h{-wide:.1f} Z"
                canvas.shape(f"M{above:.1f},{top + CELL + 3:.1f} {corners}", palette.PROCESS)
    for parts, name, y, words_at in ((files, "file", top, top - 6), (ranks, "rank", bottom, bottom + CELL + 16)):
        for part, held in enumerate(parts):
            for row in held:
                canvas.box(left(parts, part, row), y, cell, CELL, str(row), palette.DEVICE, size=13, radius=3)
            middle = left(parts, part, held.start) + len(held) * cell / 2
            canvas.text(middle, words_at, f"{name} {part}", 13, bold=True)
    return canvas.picture()


def _alt_text(files: list[range], ranks: list[range]) -> str:
    sentences = []
    for rank, wanted in enumerate(ranks):
        pieces = []
        for file, held in enumerate(files):
            start, stop = max(held.start, wanted.start), min(held.stop, wanted.stop)
            if start < stop:
                pieces.append(f"{start}–{stop - 1} of file {file}" if stop - start > 1 else f"{start} of file {file}")
        sentences.append(f"Rank {rank} reads rows {', '.join(pieces)}.")
    return " ".join(sentences)
