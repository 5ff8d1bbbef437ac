"""Buckets while they fill: which gradients are there, which buckets have gone, and what still waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.palette import Role
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

FLUSH = "flush"
HERE = Role("gradient is there", palette.ORANGE, "\\\\")
SENT = Role("launched", palette.GREEN, "xx")
MEAN = Role("average of all ranks", palette.SKY_BLUE, "//")
CARD, HIGH, PAD, GAP, NAMES = 78.0, 34.0, 8.0, 30.0, 78.0  # pixels
BUCKET, STRIP, ARROW = HIGH + 50, 32.0, 30.0

Note = str | int
"""What a rank notes: the name of a gradient that is there, the number of a bucket that it launches, or ``FLUSH``."""


@dataclass(frozen=True)
class _Rank:
    """A rank after some steps."""

    there: frozenset[str]
    sent: tuple[int, ...]
    newest: tuple[Note, ...]
    flushed: bool

    def waits(self, plan: Sequence[Sequence[str]]) -> list[int]:
        """Buckets that are full, and may not go yet."""
        return [i for i, names in enumerate(plan) if i not in self.sent and self.there.issuperset(names)]


def filling(
    plan: Sequence[Sequence[str]], seen: Mapping[int, Sequence[Note]], step: int, caption: str = "", width: int = 840
) -> Picture:
    """Two ranks with the same buckets, and the all-reduces between them, after some gradients.

    Args:
        plan: the names of the gradients in each bucket, in the order in which buckets are launched.
        seen: for each of two ranks what it noted in one backward pass, in its order.
        step: 0 before the first gradient; then one gradient a step, with the launches that it allows; then the flush.
        caption: below.
        width: pixels.
    """
    ranks = {rank: _after(notes, step) for rank, notes in seen.items()}
    steps = sum(map(len, plan)) + 1
    if all(one.flushed for one in ranks.values()):
        title = "The flush: wait for what is under way, copy the averages back"
    elif step:
        title = f"Step {step} of {steps}: " + "; ".join(_news(rank, one, plan) for rank, one in ranks.items())
    else:
        title = "The plan, the same on all ranks"
    frame = Frame(width, title, caption, (HERE, SENT, MEAN))
    canvas = frame.canvas(2 * (BUCKET + ARROW) + STRIP + 6, f"{title}. {_told(ranks, plan)}", "Buckets while they fill")
    wide = [len(names) * CARD + PAD for names in plan]
    left = EDGE + NAMES + (width - 2 * EDGE - NAMES - sum(wide) - GAP * (len(plan) - 1)) / 2
    tops = dict(zip(ranks, (frame.top, frame.top + BUCKET + 2 * ARROW + STRIP), strict=True))
    for rank, top in tops.items():
        canvas.text(EDGE + NAMES - 10, top + BUCKET / 2 + 5, f"rank {rank}", 15, anchor="end", bold=True)
    middle = frame.top + BUCKET + ARROW
    canvas.text(EDGE + NAMES - 10, middle + STRIP / 2 + 5, "network", 15, anchor="end", bold=True)
    for number, names in enumerate(plan):
        for rank, one in ranks.items():
            _bucket(canvas, left, tops[rank], wide[number], number, names, one)
        centre = left + wide[number] / 2
        missing = [rank for rank, one in ranks.items() if number not in one.sent]
        for rank in set(ranks) - set(missing):
            start, end = (middle - ARROW, middle) if tops[rank] < middle else (middle + STRIP + ARROW, middle + STRIP)
            canvas.line([(centre, start), (centre, end)], palette.GREEN, 2.6, arrow="end")
        words = "all-reduce" if not missing else f"rank {missing[0]} is missing" if len(missing) == 1 else ""
        box = {"fill": palette.PANEL, "dash": "5 4"} if missing else {"fill": "#D8F0E8", "stroke": palette.GREEN}
        words = words if wide[number] > 130 or not missing else "waits" if words else ""
        canvas.box(left, middle, wide[number], STRIP, words, size=13, **box)
        left += wide[number] + GAP
    return canvas.picture()


def _after(notes: Sequence[Note], step: int) -> _Rank:
    """What a rank has after so many steps: a gradient with the launches behind it is one, the flush is one."""
    steps: list[list[Note]] = []
    for note in notes:
        if isinstance(note, str):
            steps.append([note])
        else:
            steps[-1].append(note)
    past = [note for one in steps[:step] for note in one]
    return _Rank(
        there=frozenset(note for note in past if isinstance(note, str) and note != FLUSH),
        sent=tuple(note for note in past if isinstance(note, int)),
        newest=tuple(steps[step - 1]) if step else (),
        flushed=FLUSH in past,
    )


def _bucket(canvas: Canvas, x: float, y: float, wide: float, number: int, names: Sequence[str], one: _Rank) -> None:
    """One rank's bucket: its number, a card for each gradient, and how far it is."""
    full, sent = one.there.issuperset(names), number in one.sent
    edge = palette.VERMILION if full and not sent else palette.LINE
    canvas.box(x, y, wide, BUCKET, fill=palette.DEVICE, stroke=edge, stroke_width=2.4 if edge != palette.LINE else 1.2)
    canvas.text(x + wide / 2, y + 16, f"bucket {number}", 13, bold=True)
    for place, name in enumerate(names):
        look = {"role": MEAN if one.flushed else SENT if sent else HERE, "plate": True}
        look = look if name in one.there else {"fill": palette.PANEL, "dash": "4 4", "colour": palette.MUTED}
        canvas.box(x + PAD + place * CARD, y + 22, CARD - PAD, HIGH, name, **look)
    canvas.text(x + wide / 2, y + BUCKET - 9, _state(number, names, one), 13)


def _state(number: int, names: Sequence[str], one: _Rank) -> str:
    if one.flushed:
        return "copied back"
    if number in one.sent:
        return "launched"
    came = sum(name in one.there for name in names)
    return "full, must wait" if came == len(names) else f"{came} of {len(names)}"


def _news(rank: int, one: _Rank, plan: Sequence[Sequence[str]]) -> str:
    """What this step has brought to a rank."""
    buckets = [str(note) for note in one.newest if isinstance(note, int)]
    if buckets:
        return f"rank {rank} launches bucket{'s' * (len(buckets) > 1)} {' and '.join(buckets)}"
    full = [number for number in one.waits(plan) if one.newest[0] in plan[number]]
    return f"bucket {full[0]} of rank {rank} is full, and waits" if full else f"rank {rank} has {one.newest[0]}"


def _told(ranks: Mapping[int, _Rank], plan: Sequence[Sequence[str]]) -> str:
    return " ".join(
        f"Rank {rank}: "
        + "; ".join(f"bucket {i} ({', '.join(names)}): {_state(i, names, one)}" for i, names in enumerate(plan))
        + "."
        for rank, one in ranks.items()
    )
