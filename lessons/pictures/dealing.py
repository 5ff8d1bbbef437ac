"""Who gets what: the samples of a data set dealt to ranks, and the rows of a saved tensor cut anew for other ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.palette import Role
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, text_width

ONCE = Role("dealt once", palette.SKY_BLUE, "//")
AGAIN = Role("dealt again", palette.VERMILION, "oo")
NOBODY = Role("left out", palette.GREY, "..")
CAPTION = "Numbers are samples of the data set. Each row is read from left to right."
ROW, HEAD, GAP = 30, 24, 14  # pixels: a rank's row, a panel's heading, below a panel
NAMES = 70  # pixels for "rank 3"
CARD = 46.0
HEADING = 14

Deal = Sequence[Sequence[int]]
"""What each rank gets, in its order: ``deal[rank]`` are numbers of samples."""


def dealing(
    panels: Mapping[str, Deal],
    length: int,
    batch: int | None = None,
    title: str = "",
    caption: str = CAPTION,
    width: int = 900,
) -> Picture:
    """The samples of each rank as rows of cards; one panel for each deal, for example for each epoch.

    A sample that had a card before, in the same panel, is "dealt again". (The cards are read as they are used: first
    card of all ranks, second card of all ranks, and so on.)

    Args:
        panels: heading → what each rank gets. All have the same number of ranks.
        length: of the data set; samples that nobody gets stand below.
        batch: after how many cards of a rank there is a gap. None: no gaps.
        title: heading of the picture.
        caption: below the picture.
        width: pixels.
    """
    missing = {
        name: sorted(set(range(length)) - {card for row in deal for card in row}) for name, deal in panels.items()
    }
    longest = max([len(row) for deal in panels.values() for row in deal] + [len(left) for left in missing.values()])
    gaps = 10 * ((longest - 1) // batch) if batch else 0
    card = min(CARD, (width - 2 * EDGE - NAMES - gaps) / max(longest, 1))
    roles = [ONCE]
    roles += [AGAIN] if any(_again(deal) for deal in panels.values()) else []
    roles += [NOBODY] if any(missing.values()) else []
    frame = Frame(width, title, caption, roles)
    heights = {name: HEAD + ROW * (len(deal) + bool(missing[name])) + GAP for name, deal in panels.items()}
    canvas = frame.canvas(sum(heights.values()), _deals_text(panels, missing), "Who gets which sample")
    y = frame.top
    content = max([gaps + longest * card] + [text_width(name, HEADING, bold=True) for name in panels])
    left = NAMES + (width - NAMES - content) / 2
    for name, deal in panels.items():
        canvas.text(left, y + 15, name, HEADING, anchor="start", bold=True)
        again = _again(deal)
        for rank, row in enumerate(deal):
            marks = [AGAIN if (rank, place) in again else ONCE for place in range(len(row))]
            _row(canvas, left, y + HEAD + ROW * rank, f"rank {rank}", row, marks, card, batch)
        if missing[name]:
            marks = [NOBODY] * len(missing[name])
            _row(canvas, left, y + HEAD + ROW * len(deal), "nobody", missing[name], marks, card, None)
        y += heights[name]
    return canvas.picture()


def _row(
    canvas: Canvas, left: float, y: float, name: str, row: Sequence[int], marks: Sequence[Role], card: float,
    batch: int | None,
) -> None:  # fmt: skip
    canvas.text(left - 10, y + ROW / 2 + 4, name, 13, anchor="end")
    for place, (sample, role) in enumerate(zip(row, marks, strict=True)):
        x = left + place * card + (10 * (place // batch) if batch else 0)
        size = 13 if card >= 30 else 10
        look = {"role": role, "size": size, "radius": 4, "bold": role is AGAIN, "plate": True}
        canvas.box(x + 1.5, y + 1.5, card - 3, ROW - 3, str(sample), **look)


def _again(deal: Deal) -> set[tuple[int, int]]:
    """(rank, place) of each card whose sample had a card before."""
    seen: set[int] = set()
    found = set()
    for place in range(max(map(len, deal), default=0)):
        for rank, row in enumerate(deal):
            if place < len(row):
                if row[place] in seen:
                    found.add((rank, place))
                seen.add(row[place])
    return found


def _deals_text(panels: Mapping[str, Deal], missing: Mapping[str, Sequence[int]]) -> str:
    sentences = []
    for name, deal in panels.items():
        rows = "; ".join(f"rank {rank} gets {', '.join(map(str, row)) or 'nothing'}" for rank, row in enumerate(deal))
        again = ", ".join(str(deal[rank][place]) for rank, place in sorted(_again(deal)))
        nobody = ", ".join(map(str, missing[name]))
        sentences.append(
            (f"{name}: " if name else "")
            + f"{rows}."
            + (f" Dealt again: {again}." if again else "")
            + (f" Left out: {nobody}." if nobody else "")
        )
    return " ".join(sentences)


# --- Which rows a rank that loads takes from which file ---

READS = "Each number is a row of the tensor. A band is one read: rows that lie side by side in one file."
CELL, BAND = 30, 74  # pixels: the height of a row's cell, and of the bands
NAME = 20  # pixels for the names above and below
WIDEST = 52.0


def shares(rows: int, ranks: int) -> list[range]:
    """As even as can be: the first ranks have one row more."""
    each, more = divmod(rows, ranks)
    firsts = [rank * each + min(rank, more) for rank in range(ranks + 1)]
    return [range(first, last) for first, last in itertools.pairwise(firsts)]


def recut(rows: int, saved: int, loaded: int, title: str = "", width: int = 900) -> Picture:
    """The files of ``saved`` ranks on top, ``loaded`` ranks below, and between them a band for each read.

    Args:
        rows: of the tensor, cut as evenly as can be.
        saved: ranks that have saved, each a file.
        loaded: ranks that load.
        title: heading.
    """
    files, ranks = shares(rows, saved), shares(rows, loaded)
    gap = 22
    cell = min(WIDEST, (width - 2 * EDGE - gap * (max(saved, loaded) - 1)) / rows)
    frame = Frame(width, title, READS)
    canvas = frame.canvas(2 * NAME + 2 * CELL + BAND, _reads_text(files, ranks), "Rows cut anew")

    def left(parts: list[range], part: int, row: int) -> float:
        """Where a row begins, in the part in which it is."""
        whole = rows * cell + gap * (len(parts) - 1)
        return (width - whole) / 2 + row * cell + gap * part

    top = frame.top + NAME
    bottom = top + CELL + BAND
    for file, rank, start, stop in _reads(files, ranks):
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


def _reads(files: list[range], ranks: list[range]) -> Iterator[tuple[int, int, int, int]]:
    """File, rank, first row and the one after the last, of each read."""
    for (file, held), (rank, wanted) in itertools.product(enumerate(files), enumerate(ranks)):
        start, stop = max(held.start, wanted.start), min(held.stop, wanted.stop)
        if start < stop:
            yield file, rank, start, stop


def _reads_text(files: list[range], ranks: list[range]) -> str:
    pieces: list[list[str]] = [[] for _ in ranks]
    for file, rank, start, stop in _reads(files, ranks):
        pieces[rank].append(f"{start}–{stop - 1} of file {file}" if stop - start > 1 else f"{start} of file {file}")
    return " ".join(f"Rank {rank} reads rows {', '.join(read)}." for rank, read in enumerate(pieces))
