"""The memory of GPUs over time: a panel for each GPU, its memory as a pile of kinds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from utils.draw import palette
from utils.draw.frame import AXIS_HEIGHT, DOT, EDGE, GRID, LIMIT, PEAK, Frame, TimeAxis, limit_line, over
from utils.draw.memory import (
    KINDS,
    MOST_GPUS,
    WIDTH,
    ByteScale,
    MemorySeries,
    count_gpus,
    held_text,
    legend_of,
    peaks_alt_text,
    too_much,
)
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, number, shorten, text_width

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
    if alt is None:
        alt = peaks_alt_text(
            f"Memory of {count_gpus(len(series))} {over(start, end)}",
            [one.name for one in series],
            peaks,
            [one.capacity for one in series],
            title,
            caption,
        )
    shown = series[:MOST_GPUS]
    columns = 1 if len(shown) <= 2 else 2
    rows = -(-len(shown) // columns)
    high = {1: 220, 2: 150, 3: 130}.get(rows, 110)
    capacities = [one.capacity for one in shown]
    scale = ByteScale.of([sum(peak.values()) for peak in peaks[: len(shown)]], capacities, 3, 5)
    left = EDGE + max(text_width(word, 12) for word in scale.words()) + 8
    gap = 26
    wide = (WIDTH - left - EDGE - (columns - 1) * gap) / columns

    piles, bins = _piles(shown, start, end, int(wide), high / scale.top)
    notes = [caption] if caption else []
    if len(series) > len(shown):
        notes.append(f"and {len(series) - len(shown)} more GPUs")
    if bins < int(wide):
        notes.append(f"each column of {wide / bins:.0f} pixels shows its fullest moment")
    frame = Frame(WIDTH, title, " · ".join(notes), legend_of(peak for one in piles for peak in one),
                  [LIMIT] * any(scale.shows(c) for c in capacities) + [PEAK])  # fmt: skip
    step = 26 + high + 8
    canvas = frame.canvas(rows * step - 8 + AXIS_HEIGHT, alt, "Memory over time")
    for i, (one, peak) in enumerate(zip(shown, peaks, strict=False)):
        row, column = divmod(i, columns)
        x, base = left + column * (wide + gap), frame.top + row * step + 26 + high
        axis = TimeAxis(start, end, x, wide, 4, 7)
        words = held_text(sum(peak.values()), one.capacity)
        canvas.text(x, base - high - 9, shorten(f"{one.name}: peak {words}", wide, 12.5), size=12.5, anchor="start",
                    colour=palette.VERMILION if too_much(peak, one.capacity) else palette.INK)  # fmt: skip
        axis.grid(canvas, base - high, base, words=i + columns >= len(shown))
        for tick, word in zip(scale.ticks, scale.words(), strict=True):
            y = base - high * scale.part(tick)
            canvas.line([(x, y), (x + wide, y)], GRID, 1)
            if column == 0:
                canvas.text(x - 7, y + 4, word, size=12, anchor="end")
        _pile(canvas, piles[i], x, base, wide / bins, high / scale.top)
        canvas.box(x, base - high, wide, high, fill="none", radius=0, stroke_width=0.8)
        if scale.shows(one.capacity):
            y = base - high * scale.part(one.capacity or 0)
            limit_line(canvas, [(x, y), (x + wide, y)])
        totals = [sum(held.values()) for held in piles[i]]
        fullest = totals.index(max(totals))
        if max(totals):
            canvas.dot(x + (fullest + 0.5) * wide / bins, base - high * scale.part(max(totals)), DOT)
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


def _heights(held: Mapping[str, int], scale: float) -> list[float]:
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
