"""What happened when: spans of time in lanes (GPUs, links, others), their order, and how busy a lane is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from utils.draw import palette
from utils.draw.units import unknown

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


def busy_seconds(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans (in order of time) runs."""
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
