"""The memory of GPUs at the fullest moment: a bar for each GPU, made of kinds."""

from __future__ import annotations

from collections.abc import Mapping

from utils.draw import palette
from utils.draw.frame import EDGE, GRID, LIMIT, Frame, limit_line
from utils.draw.memory import (
    KINDS,
    WIDTH,
    ByteScale,
    check_kinds,
    count_gpus,
    held_text,
    legend_of,
    peaks_alt_text,
    too_much,
)
from utils.draw.picture import Picture
from utils.draw.svg import shorten, text_width
from utils.draw.units import size_text

MOST_BARS = 16


def memory_at_peak(
    peaks: Mapping[str, Mapping[str, int]],
    *,
    title: str = "",
    caption: str = "simulated",
    capacity: int | None = None,
    alt: str | None = None,
) -> Picture:
    """A bar for each GPU: what its memory holds at the fullest moment.

    Args:
        peaks: a GPU's name → a kind in ``palette.MEMORY_KINDS`` → bytes. The first 16 GPUs are drawn.
        title: the sentence that the picture shows.
        caption: "simulated", what was simulated, or the hardware's name.
        capacity: bytes that each GPU has, drawn as a line.
        alt: text alternative; None: each GPU's peak and what is the most of it.

    Raises:
        ValueError: if there is nothing to draw.
    """
    if not peaks:
        raise ValueError("there is no memory to draw: no GPU was given")
    for name, held in peaks.items():
        check_kinds(name, held)
    if alt is None:
        alt = peaks_alt_text(
            f"Memory of {count_gpus(len(peaks))} at the fullest moment",
            list(peaks),
            list(peaks.values()),
            [capacity] * len(peaks),
            title,
            caption,
        )
    shown = dict(list(peaks.items())[:MOST_BARS])
    totals = {name: sum(held.values()) for name, held in shown.items()}
    scale = ByteScale.of(list(totals.values()), [capacity], 4, 7)
    names = {name: shorten(name, 190, 13) for name in shown}
    ends = {name: held_text(total, None) for name, total in totals.items()}
    left = EDGE + max(text_width(name, 13) for name in names.values()) + 10
    right = EDGE + max(text_width(end, 13, bold=True) for end in ends.values()) + 10
    wide = WIDTH - left - right

    small = {
        name: [k for k in KINDS if held.get(k) and text_width(size_text(held[k]), 12) + 8 > wide * scale.part(held[k])]
        for name, held in shown.items()
    }
    tall = 34 if len(shown) <= 8 else 22
    heights = {name: tall + (17 if small[name] else 0) + 10 for name in shown}
    notes = [caption] if caption else []
    if len(peaks) > len(shown):
        notes.append(f"and {len(peaks) - len(shown)} more GPUs")
    if capacity and not scale.shows(capacity):
        notes.append(f"each GPU has {size_text(capacity)}, far beyond the right end")
    frame = Frame(WIDTH, title, " · ".join(notes), legend_of(shown.values()), [LIMIT] * scale.shows(capacity))
    canvas = frame.canvas(sum(heights.values()) + 22, alt, "Memory at the fullest moment")
    y, bottom = frame.top, frame.top + sum(heights.values())
    limit = left + wide * scale.part(capacity or 0) if scale.shows(capacity) else None
    on_the_line = []  # texts that the line of the capacity crosses: they are written last, with white around them
    for tick, word in zip(scale.ticks, scale.words(), strict=True):
        x = left + wide * scale.part(tick)
        canvas.line([(x, y), (x, bottom + 4)], GRID, 1)
        canvas.text(x, bottom + 18, word, size=12)
    for name, held in shown.items():
        canvas.text(left - 10, y + tall / 2 + 4.5, names[name], size=13, anchor="end")
        x = left
        for kind in KINDS:
            if not held.get(kind):
                continue
            length = wide * scale.part(held[kind])
            words = "" if kind in small[name] else size_text(held[kind])
            if words and limit and abs(x + length / 2 - limit) < text_width(words, 12) / 2 + 4:
                on_the_line.append({"x": x + length / 2, "y": y + tall / 2 + 4.2, "text": words, "size": 12})
                words = ""
            role = palette.MEMORY_KINDS[kind]
            canvas.box(x, y, length, tall, words or (), role=role, size=12, radius=0, stroke_width=0.8)
            x += length
        colour = palette.VERMILION if too_much(held, capacity) else palette.INK
        canvas.text(x + 8, y + tall / 2 + 4.5, ends[name], size=13, anchor="start", bold=True, colour=colour)
        if small[name]:
            words = "and " + ", ".join(f"{size_text(held[kind])} {kind}" for kind in small[name])
            at = {"x": left, "y": y + tall + 14, "text": words, "size": 12, "anchor": "start", "colour": palette.MUTED}
            if limit and limit < left + text_width(words, 12) + 4:
                on_the_line.append(at)
            else:
                canvas.text(**at)
        y += heights[name]
    canvas.line([(left, frame.top - 4), (left, bottom)], palette.LINE, 1.2)
    if limit:
        limit_line(canvas, [(limit, frame.top - 4), (limit, bottom)])
    for text in on_the_line:
        canvas.text(**text, halo=True)
    return canvas.picture()
