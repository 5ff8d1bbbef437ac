"""What fills the GPUs' memory, kind by kind: over time, and for each GPU at its fullest moment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from utils.draw import frame, palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, number, shorten, text_width

WIDTH = 900
MOST_GPUS = 8
KINDS = tuple(palette.MEMORY_KINDS)
Held = Mapping[str, int]
"""Bytes by kind."""


@dataclass(frozen=True)
class MemorySeries:
    """What one GPU's memory holds, as time goes on.

    Args:
        name: "GPU 0".
        times: seconds, increasing (several at the same moment are allowed).
        bytes_by_kind: a kind in ``palette.MEMORY_KINDS`` → the bytes held from times[i] until times[i+1]. The last
            ones are held until the end of the picture; before the first there is nothing.
    """

    name: str
    times: Sequence[float]
    bytes_by_kind: Mapping[str, Sequence[int]]

    def __post_init__(self) -> None:
        if not len(self.times):
            raise ValueError(f"{self.name}: there are no times, so there is nothing to draw")
        if not all(map(math.isfinite, self.times)):
            raise ValueError(f"{self.name}: times must be numbers of seconds")
        for before, after in itertools.pairwise(self.times):
            if after < before:
                raise ValueError(f"{self.name}: times must increase, but {after:.9g} s comes after {before:.9g} s")
        for kind, values in self.bytes_by_kind.items():
            check_kinds(self.name, {kind: min(values, default=0)})
            if len(values) != len(self.times):
                raise ValueError(
                    f"{self.name}: {len(self.times)} times, but {len(values)} numbers of bytes for {kind!r}"
                )

    def totals(self) -> list[int]:
        """All kinds together, at each time."""
        held = self.bytes_by_kind.values()
        return [sum(each) for each in zip(*held, strict=True)] if held else [0] * len(self.times)

    def peak(self) -> dict[str, int]:
        """What is held at the fullest moment, kind by kind."""
        totals = self.totals()
        i = totals.index(max(totals))
        return {kind: self.bytes_by_kind[kind][i] for kind in KINDS if kind in self.bytes_by_kind}


@dataclass(frozen=True)
class ByteScale:
    """The axis for bytes: from 0 to ``top``."""

    top: float
    ticks: list[float]

    @staticmethod
    def of(totals: Sequence[int], least: int, most: int) -> ByteScale:
        """Room for all totals, with so many ticks."""
        top = 1.04 * (max(totals) or 1)
        return ByteScale(top, frame.round_ticks(0, top, least, most))

    def part(self, nbytes: float) -> float:
        return nbytes / self.top

    def words(self) -> list[str]:
        unit, factor = frame.unit_for(self.ticks[-1], frame.SIZES)
        return [f"{tick / factor:.6g} {unit}" for tick in self.ticks]


def check_kinds(name: str, held: Held) -> None:
    for kind, nbytes in held.items():
        if kind not in palette.MEMORY_KINDS:
            raise ValueError(f"{name}: {frame.unknown('kind of memory', kind, KINDS)}")
        if not nbytes >= 0:
            raise ValueError(f"{name}: nothing can hold {nbytes} bytes ({kind})")


def legend_of(held: Iterable[Held]) -> list[palette.Role]:
    """The kinds of which there is something."""
    present = {kind for each in held for kind, nbytes in each.items() if nbytes}
    return [role for kind, role in palette.MEMORY_KINDS.items() if kind in present]


def peaks_alt_text(opening: str, gpus: Sequence[tuple[str, Held]], title: str, caption: str) -> str:
    """The sentence for those who cannot see the picture: each GPU's name, its peak and its largest kind."""
    parts = []
    for name, held in gpus[:MOST_GPUS]:
        total = sum(held.values())
        most = max(KINDS, key=lambda kind: held.get(kind, 0))
        share = f", most of it {most} ({frame.size_text(held[most])})" if total else ""
        if total and held[most] <= total / 2:
            share = f", the largest part {most} ({frame.size_text(held[most])})"
        parts.append(f"{name} holds at most {frame.size_text(total)}{share}")
    if len(gpus) > MOST_GPUS:
        parts.append(f"and {len(gpus) - MOST_GPUS} more")
    of = f"Memory of {len(gpus)} GPU{'' if len(gpus) == 1 else 's'} {opening}{frame.caption_clause(caption)}"
    return (f"{title.rstrip('.')}. " if title else "") + f"{of}: {'; '.join(parts)}."


# --- Over time ---

MOST_CORNERS = 2400  # steps in all areas of one picture: about 60 kB


def memory_over_time(
    series: Sequence[MemorySeries], *, title: str = "", caption: str = "simulated", alt: str | None = None
) -> Picture:
    """A panel for each GPU: its memory as a pile of kinds, time to the right, all panels on the same axes.

    Each column of pixels shows its fullest moment, so the peak is always there.

    Args:
        series: one for each GPU; the first eight are drawn.
        title: the sentence that the picture shows.
        caption: "simulated", what was simulated, or the hardware's name.
        alt: text alternative; None: each GPU's peak and what is the most of it.

    Raises:
        ValueError: if there is nothing to draw.
    """
    if not series:
        raise ValueError("there is no memory to draw: the list of series is empty")
    start, end = min(one.times[0] for one in series), max(one.times[-1] for one in series)
    if not end > start:
        raise ValueError(f"there is no time to draw: everything happens at {start:.9g} s")
    peaks = [one.peak() for one in series]
    gpus = [(one.name, peak) for one, peak in zip(series, peaks, strict=True)]
    alt = alt or peaks_alt_text(frame.over(start, end), gpus, title, caption)
    shown = series[:MOST_GPUS]
    columns = 1 if len(shown) <= 2 else 2
    rows = -(-len(shown) // columns)
    high = {1: 220, 2: 150, 3: 130}.get(rows, 110)
    scale = ByteScale.of([sum(peak.values()) for peak in peaks[: len(shown)]], 3, 5)
    left = frame.EDGE + max(text_width(word, 12) for word in scale.words()) + 8
    gap = 26
    wide = (WIDTH - left - frame.EDGE - (columns - 1) * gap) / columns

    piles, bins = _piles(shown, start, end, int(wide), high / scale.top)
    notes = [caption] if caption else []
    if len(series) > len(shown):
        notes.append(f"and {len(series) - len(shown)} more GPUs")
    if bins < int(wide):
        notes.append(f"each column of {wide / bins:.0f} pixels shows its fullest moment")
    outline = frame.Frame(WIDTH, title, " · ".join(notes), legend_of(peak for one in piles for peak in one), peak=True)
    step = 26 + high + 8
    canvas = outline.canvas(rows * step - 8 + frame.AXIS_HEIGHT, alt, "Memory over time")
    for i, (one, peak) in enumerate(zip(shown, peaks, strict=False)):
        row, column = divmod(i, columns)
        x, base = left + column * (wide + gap), outline.top + row * step + 26 + high
        axis = frame.TimeAxis(start, end, x, wide, 4, 7)
        words = f"{one.name}: peak {frame.size_text(sum(peak.values()))}"
        canvas.text(x, base - high - 9, shorten(words, wide, 12.5), size=12.5, anchor="start")
        axis.grid(canvas, base - high, base, words=i + columns >= len(shown))
        for tick, word in zip(scale.ticks, scale.words(), strict=True):
            y = base - high * scale.part(tick)
            canvas.line([(x, y), (x + wide, y)], frame.GRID, 1)
            if column == 0:
                canvas.text(x - 7, y + 4, word, size=12, anchor="end")
        _pile(canvas, piles[i], x, base, wide / bins, high / scale.top)
        canvas.box(x, base - high, wide, high, fill="none", radius=0, stroke_width=0.8)
        totals = [sum(held.values()) for held in piles[i]]
        fullest = totals.index(max(totals))
        if max(totals):
            canvas.dot(x + (fullest + 0.5) * wide / bins, base - high * scale.part(max(totals)), frame.DOT)
    return canvas.picture()


# --- Few steps out of many ----------------------------------------------------------------------------------

_Pile = list[dict[str, int]]


def _piles(
    series: Sequence[MemorySeries], start: float, end: float, most_bins: int, scale: float
) -> tuple[list[_Pile], int]:
    """Each GPU's fullest moment in each of some columns; fewer columns if the picture would get too large."""
    bins = most_bins
    while True:
        piles = [_fullest(one, start, end, bins) for one in series]
        corners = sum(
            below != above
            for pile in piles
            for before, after in itertools.pairwise(pile)
            for below, above in zip(_heights(before, scale), _heights(after, scale), strict=True)
        )
        if corners <= MOST_CORNERS or bins < 60:
            return piles, bins
        bins //= 2


def _fullest(one: MemorySeries, start: float, end: float, bins: int) -> _Pile:
    """For each of ``bins`` equal parts of the time: what is held when most is held."""
    totals = one.totals()
    best: list[int | None] = [None] * bins
    places = [(time - start) / (end - start) * bins for time in one.times] + [float(bins)]
    for i, total in enumerate(totals):
        first = min(int(places[i] + 1e-9), bins - 1)
        for b in range(first, max(first + 1, min(bins, math.ceil(places[i + 1] - 1e-9)))):
            held = best[b]
            if held is None or total > totals[held]:
                best[b] = i
    kinds = [kind for kind in KINDS if kind in one.bytes_by_kind]
    return [{kind: one.bytes_by_kind[kind][i] for kind in kinds} if i is not None else {} for i in best]


def _heights(held: Held, scale: float) -> list[float]:
    """Where each kind ends in the pile, in pixels from its bottom, rounded to halves."""
    return [round(2 * scale * total) / 2 for total in itertools.accumulate(held.get(kind, 0) for kind in KINDS)]


def _pile(canvas: Canvas, pile: _Pile, left: float, base: float, step: float, scale: float) -> None:
    """Areas from the base line up, the highest first; each lower one covers what is not its own."""
    heights = [_heights(held, scale) for held in pile]
    for n in range(len(KINDS), 0, -1):
        if not any(held.get(KINDS[n - 1]) for held in pile):
            continue
        path, y = [f"M{number(left)} {number(base)}"], number(base)
        for b, tops in enumerate(heights):
            new = number(base - tops[n - 1])
            if new != y:
                path.append(f"H{number(left + b * step)}V{new}")
                y = new
        path.append(f"H{number(left + len(pile) * step)}V{number(base)}z")
        canvas.area("".join(path), palette.MEMORY_KINDS[KINDS[n - 1]], outline=0.6)


# --- At the fullest moment ---

MOST_BARS = 16


def memory_at_peak(
    peaks: Mapping[str, Mapping[str, int]],
    *,
    title: str = "",
    caption: str = "simulated",
    alt: str | None = None,
) -> Picture:
    """A bar for each GPU: what its memory holds at the fullest moment.

    Args:
        peaks: a GPU's name → a kind in ``palette.MEMORY_KINDS`` → bytes. The first 16 GPUs are drawn.
        title: the sentence that the picture shows.
        caption: "simulated", what was simulated, or the hardware's name.
        alt: text alternative; None: each GPU's peak and what is the most of it.

    Raises:
        ValueError: if there is nothing to draw.
    """
    if not peaks:
        raise ValueError("there is no memory to draw: no GPU was given")
    for name, held in peaks.items():
        check_kinds(name, held)
    alt = alt or peaks_alt_text("at the fullest moment", list(peaks.items()), title, caption)
    shown = dict(list(peaks.items())[:MOST_BARS])
    totals = {name: sum(held.values()) for name, held in shown.items()}
    scale = ByteScale.of(list(totals.values()), 4, 7)
    names = {name: shorten(name, 190, 13) for name in shown}
    ends = {name: frame.size_text(total) for name, total in totals.items()}
    left = frame.EDGE + max(text_width(name, 13) for name in names.values()) + 10
    right = frame.EDGE + max(text_width(end, 13, bold=True) for end in ends.values()) + 10
    wide = WIDTH - left - right

    small: dict[str, list[str]] = {}  # kinds whose sizes find no room in their parts of a bar
    for name, held in shown.items():
        sizes = {kind: text_width(frame.size_text(held[kind]), 12) + 8 for kind in KINDS if held.get(kind)}
        small[name] = [kind for kind, pixels in sizes.items() if pixels > wide * scale.part(held[kind])]
    tall = 34 if len(shown) <= 8 else 22
    heights = {name: tall + (17 if small[name] else 0) + 10 for name in shown}
    notes = [caption] if caption else []
    if len(peaks) > len(shown):
        notes.append(f"and {len(peaks) - len(shown)} more GPUs")
    outline = frame.Frame(WIDTH, title, " · ".join(notes), legend_of(shown.values()))
    canvas = outline.canvas(sum(heights.values()) + 22, alt, "Memory at the fullest moment")
    y, bottom = outline.top, outline.top + sum(heights.values())
    for tick, word in zip(scale.ticks, scale.words(), strict=True):
        x = left + wide * scale.part(tick)
        canvas.line([(x, y), (x, bottom + 4)], frame.GRID, 1)
        canvas.text(x, bottom + 18, word, size=12)
    for name, held in shown.items():
        canvas.text(left - 10, y + tall / 2 + 4.5, names[name], size=13, anchor="end")
        x = left
        for kind in KINDS:
            if not held.get(kind):
                continue
            length = wide * scale.part(held[kind])
            words = "" if kind in small[name] else frame.size_text(held[kind])
            role = palette.MEMORY_KINDS[kind]
            canvas.box(x, y, length, tall, words or (), role=role, size=12, radius=0, stroke_width=0.8)
            x += length
        canvas.text(x + 8, y + tall / 2 + 4.5, ends[name], size=13, anchor="start", bold=True)
        if small[name]:
            words = "and " + ", ".join(f"{frame.size_text(held[kind])} {kind}" for kind in small[name])
            canvas.text(left, y + tall + 14, words, size=12, anchor="start", colour=palette.MUTED)
        y += heights[name]
    canvas.line([(left, outline.top - 4), (left, bottom)], palette.LINE, 1.2)
    return canvas.picture()
