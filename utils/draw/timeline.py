"""Who did what when: a timeline with one lane per GPU, then the links between them, then the host.

In three steps: what is drawn (``Span``), few shapes made of many spans (``thinned``), the picture (``timeline``).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from utils.draw import palette
from utils.draw.frame import AXIS_HEIGHT, EDGE, Frame, TimeAxis, caption_clause, over, share_text, unknown
from utils.draw.picture import Picture
from utils.draw.svg import number, shorten, text_width

MOST_ROWS = {False: 3, True: 2}  # side by side in one lane: work, and communication
#: A role's place in legends, and among spans that begin together.
ORDER = {name: i for i, name in enumerate(palette.ROLES)}

_ARROW = re.compile("→|←|↔|->|<-")
_GPU = re.compile(r"(GPU|CPU|rank|device)\s*\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Args:
        lane: where: "GPU 0", a link "GPU 0 → GPU 1", or any other name, such as "host".
        start, end: seconds.
        role: what kind of work, a name in ``palette.ROLES``.
        label: a short text that is shown inside where it fits, such as "F1".
    """

    lane: str
    start: float
    end: float
    role: str
    label: str = ""

    def __post_init__(self) -> None:
        if self.role not in palette.ROLES:
            raise ValueError(unknown("role", self.role, palette.ROLES))
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"{self}: start and end must be numbers of seconds, not {self.start} and {self.end}")
        if self.end < self.start:
            raise ValueError(f"{self} ends at {self.end:.9g} s, before it starts at {self.start:.9g} s")

    def __str__(self) -> str:
        return f"the span {(self.label or self.role)!r} in lane {self.lane!r}"


def lane_kind(lane: str) -> int:
    """0 for a GPU, 1 for a link, 2 for anything else."""
    return 1 if _ARROW.search(lane) else 0 if _GPU.match(lane) else 2


def lane_order(lane: str) -> tuple[int, list[tuple[int, str]]]:
    """GPUs, links, others; numbers in names count as numbers: GPU 2 before GPU 10."""
    parts = re.split(r"(\d+)", lane)
    return lane_kind(lane), [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def inside_window(spans: Iterable[Span], lane: str, start: float, end: float) -> list[Span]:
    """A lane's spans in order of time, cut at the picture's start and end. On a GPU, without idle ones."""
    found = [span for span in spans if span.end > max(start, span.start) and span.start < end]
    if lane_kind(lane) == 0:
        found = [span for span in found if span.role != palette.IDLE.name]
    found.sort(key=lambda span: (span.start, span.end, ORDER[span.role], span.label))
    return [
        span
        if start <= span.start and span.end <= end
        else dataclasses.replace(span, start=max(start, span.start), end=min(end, span.end))
        for span in found
    ]


def busy_seconds(spans: Iterable[Any]) -> float:
    """Seconds in which at least one of the spans runs. (In order of time; whatever has a ``start`` and an ``end``.)"""
    total, until = 0.0, -math.inf
    for span in spans:
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def in_rows(spans: Sequence[Span]) -> tuple[list[list[Span]], int]:
    """Spans that overlap go into rows under each other: work first, then communication.

    Returns:
        The rows, and how many spans do not find room, or not for all of their time.
    """
    noise = 1e-9 * (spans[-1].end - spans[0].start) if spans else 0.0
    if all(b.start >= a.end - noise for a, b in itertools.pairwise(spans)):
        return [list(spans)], 0
    rows: list[list[Span]] = []
    hidden = 0
    for communication in (False, True):
        mine: list[list[Span]] = []
        for span in spans:
            if (span.role == palette.COMMUNICATION.name) != communication:
                continue
            row = next((row for row in mine if row[-1].end <= span.start + noise), None)
            if row is not None:
                row.append(span)
            elif len(mine) < MOST_ROWS[communication]:
                mine.append([span])
            else:
                row = min(mine, key=lambda row: row[-1].end)
                hidden += 1
                if row[-1].end < span.end:
                    row.append(dataclasses.replace(span, start=row[-1].end))
        rows += mine
    return rows, hidden


# --- Few shapes of many spans: those that follow each other without a gap and say the same become one. Then spans too
# short to be seen alone are drawn together: within a strip of a few pixels they stand sorted by kind, each kind as wide
# as all its spans in the strip, so that nothing looks busier or more idle than it is. ---

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


def _strips(pieces: Sequence[Piece], small: float) -> list[Piece]:
    """Pieces narrower than ``small`` are drawn together in strips of at most ``_strip(small)`` pixels.

    In a strip the kinds stand side by side, each as wide as all its pieces together; what is left over is idle.
    """
    result: list[Piece] = []
    together: list[Piece] = []

    def finish() -> None:
        if len(together) > 1:
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
    return _joined(result)


def thinned(rows: list[list[Piece]]) -> list[list[Piece]]:
    """All rows of the picture with so few pieces that it stays small."""
    rows = [_joined(row) for row in rows]
    small = 1.0
    while True:
        strips = [_strips(row, small) for row in rows]
        if sum(map(len, strips)) <= MOST_PIECES:
            return strips
        small *= 1.4


# --- The picture ---

MOST_LANES = 16
NAME_SIZE, LABEL_SIZE = 13, 12
LABEL_WIDTH = 190
ROW = 18
SEEN, OUTLINED = 1.5, 3.0  # pixels: the least that is drawn, and the least that gets an outline


def timeline(  # noqa: PLR0913
    spans: Iterable[Span],
    *,
    title: str = "",
    caption: str = "simulated",
    lanes: Sequence[str] | None = None,
    alt: str | None = None,
    width: int = 900,
    start: float | None = None,
    end: float | None = None,
    until: float | Mapping[str, float] | None = None,
) -> Picture:
    """Time to the right, GPU 0 on top; what is idle on a GPU is drawn too.

    Spans of one lane that overlap in time are drawn under each other, communication below. Spans of the role "idle"
    are welcome and not needed on the lanes of GPUs: idle is whatever no other span covers.

    Args:
        spans: in any order.
        title: the sentence that the picture shows.
        caption: "simulated", what was simulated, or the hardware's name.
        lanes: which lanes, from top to bottom; a lane without spans is idle. None: all that occur, GPUs first, then
            links, then others.
        alt: text alternative; None: how busy each GPU is.
        width: pixels.
        start, end: the part of the time to draw, in seconds; None: from the first span to the last.
        until: when the work is over, in seconds, where the axis goes on: of all lanes, or of those named. What comes
            after is not idle: it is left white, and does not count for how busy a lane is.

    Raises:
        ValueError: if there is nothing to draw.
    """
    if width < 480:
        raise ValueError(f"a timeline needs at least 480 pixels, not {width}")
    spans = list(spans)
    if not spans:
        raise ValueError("there are no spans, so there is no time to draw")
    names = list(dict.fromkeys(lanes)) if lanes is not None else sorted({span.lane for span in spans}, key=lane_order)
    spans = [span for span in spans if span.lane in set(names)]
    if not spans:
        raise ValueError(f"no span lies in one of the lanes {', '.join(map(repr, names)) or '(none)'}")
    first = min(span.start for span in spans) if start is None else start
    last = max(span.end for span in spans) if end is None else end
    if not last > first:
        raise ValueError(f"there is no time to draw between {first:.9g} s and {last:.9g} s")
    of_lane: dict[str, list[Span]] = {name: [] for name in names}
    for span in spans:
        of_lane[span.lane].append(span)
    inside = {name: inside_window(of_lane[name], name, first, last) for name in names}
    ends: Mapping[str, float | None] = until if isinstance(until, Mapping) else dict.fromkeys(names, until)
    over_at = {name: last if (over := ends.get(name)) is None else min(over, last) for name in names}
    busy = {name: busy_seconds(inside[name]) / (over_at[name] - first) for name in names if lane_kind(name) == 0}
    if alt is None:
        alt = (f"{title.rstrip('.')}. " if title else "") + _alt_text(names, busy, first, last, caption)
        if min(over_at.values()) < last:
            alt = alt.replace(" of the time", " of its own time")
    drawn = names if len(names) <= MOST_LANES else names[: MOST_LANES - 1]
    return _draw(inside, drawn, len(names) - len(drawn), busy, over_at, (first, last), title, caption, alt, width)


def _alt_text(names: Sequence[str], busy: dict[str, float], start: float, end: float, caption: str) -> str:
    """The sentence for those who cannot see the picture."""
    gpus = f"{len(busy)} {_word(busy)}" if busy else f"{len(names)} lane{'' if len(names) == 1 else 's'}"
    opening = f"Timeline of {gpus} {over(start, end)}{caption_clause(caption)}"
    if not busy:
        return f"{opening}: {', '.join(names)}."
    if len(busy) <= 8:
        parts = [f"{lane} {'is busy ' if i == 0 else ''}{share_text(share)}{' of the time' if i == 0 else ''}"
                 for i, (lane, share) in enumerate(busy.items())]  # fmt: skip
        return f"{opening}: {', '.join(parts)}."
    if len(set(map(share_text, busy.values()))) == 1:
        return f"{opening}: each is busy {share_text(next(iter(busy.values())))} of the time."
    most, least = max(busy, key=lambda lane: busy[lane]), min(busy, key=lambda lane: busy[lane])
    return f"{opening}: the busiest is {most} with {share_text(busy[most])} of the time, the least busy is {least} " \
           f"with {share_text(busy[least])}."  # fmt: skip


def _word(busy: dict[str, float]) -> str:
    if all(lane.upper().startswith("GPU") for lane in busy):
        return "GPU" if len(busy) == 1 else "GPUs"
    return "lane" if len(busy) == 1 else "lanes"


def _draw(  # noqa: PLR0913
    inside: dict[str, list[Span]],
    lanes: Sequence[str],
    left_out: int,
    busy: dict[str, float],
    over_at: dict[str, float],
    window: tuple[float, float],
    title: str,
    caption: str,
    alt: str,
    width: int,
) -> Picture:
    names = {lane: shorten(lane, LABEL_WIDTH, NAME_SIZE) for lane in lanes}
    left = EDGE + max(text_width(name, NAME_SIZE) for name in names.values()) + 10
    right = EDGE + max((text_width(_busy_text(busy[lane]), 12) + 8 for lane in lanes if lane in busy), default=8)
    axis = TimeAxis(*window, left, width - left - right)

    rows, hidden = {}, 0
    for lane in lanes:
        rows[lane], unseen = in_rows(inside[lane])
        hidden += unseen
    flat = [
        [Piece(axis.x(span.start) - left, axis.x(span.end) - left, span.role, span.label) for span in row]
        for lane in lanes
        for row in rows[lane]
    ]
    flat = thinned(flat)
    pieces = iter(flat)

    tall = 30 if sum(lane_kind(lane) == 0 for lane in lanes) <= 8 else 24
    places: dict[str, tuple[float, float]] = {}
    y = 4.0
    for i, lane in enumerate(lanes):
        if i:
            y += 7 if lane_kind(lane) == lane_kind(lanes[i - 1]) else 14
        height: float = max(tall if lane_kind(lane) == 0 else ROW, ROW * len(rows[lane]))
        places[lane] = (y, height)
        y += height
    y_end = y
    bottom = y + (22 if left_out else 5)

    idle = [lane for lane in lanes if lane in busy and busy[lane] < 0.99995]
    present = {piece.role for row in flat for piece in row} | ({palette.IDLE.name} if idle else set())
    notes = [caption] if caption else []
    if hidden:
        notes.append(f"{hidden:,} spans are hidden behind others, at least in part")
    legend = sorted(
        (palette.ROLES[name] for name in present), key=lambda role: (role is palette.IDLE, ORDER[role.name])
    )
    frame = Frame(width, title, " · ".join(notes), legend)
    canvas = frame.canvas(bottom + AXIS_HEIGHT, alt, "Timeline")
    top = frame.top
    axis.grid(canvas, top, top + bottom)

    shapes: dict[tuple[str, bool], list[str]] = {}
    labels: list[tuple[float, float, str]] = []
    for lane, (y, height) in places.items():
        y += top
        canvas.text(left - 10, y + height / 2 + 4.5, names[lane], size=NAME_SIZE, anchor="end")
        if lane in busy:
            canvas.text(width - right + 8, y + height / 2 + 4, _busy_text(busy[lane]), size=12, anchor="start",
                        colour=palette.MUTED)  # fmt: skip
        drawn = [next(pieces) for _ in rows[lane]]
        if lane in idle:
            for a, b in _gaps(drawn, axis.x(over_at[lane]) - left):
                shapes.setdefault((palette.IDLE.name, False), []).append(_rectangle(left + a, left + b, y, height))
        height /= len(drawn)
        for row in drawn:
            for piece, after in itertools.zip_longest(row, row[1:]):
                end = max(piece.right, min(piece.left + (SEEN if piece.alone else SEEN / 3), axis.width))
                if after and end > after.left:  # a long neighbour gives way, so that a short span can be seen
                    end = after.left = end if after.width >= 10 * SEEN else after.left
                shapes.setdefault((piece.role, piece.alone and end - piece.left >= OUTLINED), []).append(
                    _rectangle(left + piece.left, left + end, y, height)
                )
                if piece.label and 0.9 * text_width(piece.label, LABEL_SIZE) + 4 <= piece.width:
                    labels.append((left + (piece.left + piece.right) / 2, y + height / 2 + 4.3, piece.label))
            y += height
    for role in sorted(legend, key=lambda role: role is not palette.IDLE):  # idle lies behind everything
        for outlined in (False, True):
            if found := shapes.get((role.name, outlined)):
                canvas.area("".join(found), role, outline=0.8 if outlined else 0)
    for lane_top, height in places.values():
        canvas.box(left, top + lane_top, axis.width, height, fill="none", radius=0, stroke_width=0.8)
    canvas.labels(labels, LABEL_SIZE)
    if left_out:
        words = f"and {left_out} more lane{'' if left_out == 1 else 's'}"
        canvas.text(left + 4, top + y_end + 15, words, size=12, anchor="start", colour=palette.MUTED)
    return canvas.picture()


def _gaps(rows: Sequence[Sequence[Piece]], width: float) -> list[tuple[float, float]]:
    """Where the lane is idle, as far as it needs drawing: behind a single row simply everywhere."""
    if len(rows) == 1:
        return [(0, width)]
    gaps, until = [], 0.0
    for piece in sorted((piece for row in rows for piece in row), key=lambda piece: piece.left):
        if piece.left - until >= 0.1:
            gaps.append((until, piece.left))
        until = max(until, piece.right)
    return [*gaps, (until, width)] if width - until >= 0.1 else gaps


def _busy_text(share: float) -> str:
    return f"busy {share_text(share)}"


def _rectangle(left: float, right: float, top: float, height: float) -> str:
    """A rectangle as a part of an SVG path. Rounded edges, so that neighbours touch."""
    left, right = round(left, 1), round(right, 1)
    return f"M{number(left)} {number(top)}h{number(right - left)}v{number(height)}h{number(left - right)}z"
