"""What stands around a picture: title, legend, time axis and caption, each in the space that it needs.

And numbers as people write them: sizes in decimal units (1 GB is 10⁹ bytes), times, shares, and round ticks.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from utils.draw import palette
from utils.draw.palette import Role
from utils.draw.svg import Canvas, text_width, wrap

EDGE = 16
TITLE_SIZE, LEGEND_SIZE, CAPTION_SIZE = 17, 13, 12
AXIS_HEIGHT = 40
GRID = "#DDDDDD"
PEAK = "peak"
DOT = 3.5


@dataclass(frozen=True)
class Frame:
    """Title and legend above the content, the caption below it.

    Args:
        width: of the picture.
        title: heading; "" leaves it out.
        caption: "simulated", or the hardware's name.
        roles: what the legend explains.
        peak: it explains the dot that stands for a peak, too.
    """

    width: float
    title: str
    caption: str
    roles: Sequence[Role] = ()
    peak: bool = False

    @property
    def _titles(self) -> list[str]:
        return wrap(self.title, self.width - 2 * EDGE, TITLE_SIZE, bold=True)

    @property
    def _captions(self) -> list[str]:
        return wrap(self.caption, self.width - 2 * EDGE, CAPTION_SIZE)

    @property
    def _legend(self) -> list[list[tuple[Role | None, str, float]]]:
        """Rows of (role, or None for the peak; its word; the pixels that it takes)."""
        entries: list[tuple[Role | None, str]] = [(role, role.name) for role in self.roles]
        entries += [(None, PEAK)] * self.peak
        rows: list[list[tuple[Role | None, str, float]]] = []
        for role, name in entries:
            needed = 56 + text_width(name, LEGEND_SIZE)
            if not rows or sum(entry[2] for entry in rows[-1]) + needed > self.width - 2 * EDGE:
                rows.append([])
            rows[-1].append((role, name, needed))
        return rows

    @property
    def top(self) -> float:
        """Where the content may begin."""
        return 10 + 23 * len(self._titles) + 25 * len(self._legend) + 10

    @property
    def below(self) -> float:
        """What the caption needs under the content."""
        return 10 + 16 * len(self._captions) + 4

    def canvas(self, content: float, alt: str, name: str) -> Canvas:
        """A canvas with room for ``content`` pixels, title, legend and caption. ``name``: if there is no title."""
        height = self.top + content + self.below
        canvas = Canvas(self.width, height, self.title or name, alt, heading=False)
        y = 10.0
        for line in self._titles:
            y += 23
            canvas.text(self.width / 2, y - 5, line, size=TITLE_SIZE, bold=True)
        for row in self._legend:
            y += 25
            x = (self.width - sum(entry[2] for entry in row)) / 2 + 8
            for role, word, needed in row:
                if role:
                    canvas.box(x, y - 17, 28, 16, role=role, radius=2, stroke_width=0.8)
                else:
                    canvas.dot(x + 20, y - 9, DOT)
                canvas.text(x + 34, y - 4, word, size=LEGEND_SIZE, anchor="start")
                x += needed
        y = height - self.below + 10
        for line in self._captions:
            y += 16
            canvas.text(self.width / 2, y - 4, line, size=CAPTION_SIZE, colour=palette.MUTED)
        return canvas


@dataclass(frozen=True)
class TimeAxis:
    """Seconds to pixels, and the round ticks.

    Args:
        start, end: seconds.
        left, width: pixels of the first and all of the time.
        least, most: how many ticks.
    """

    start: float
    end: float
    left: float
    width: float
    least: int = 4
    most: int = 7

    def x(self, seconds: float) -> float:
        """Where a moment lies."""
        return self.left + (seconds - self.start) / (self.end - self.start) * self.width

    def _ticks(self) -> tuple[float, str, list[float]]:
        """The moment from which the axis counts, the unit, and the ticks in this unit."""
        length = self.end - self.start
        far = abs(self.start) > 20 * length  # a short look at something late: count from a round moment
        coarse = 10.0 ** (math.floor(math.log10(length)) + 1)
        origin = math.floor(self.start / coarse) * coarse if far else 0.0
        unit, factor = unit_for(length if far else max(abs(self.start), abs(self.end)), TIMES)
        low, high = (self.start - origin) / factor, (self.end - origin) / factor
        return origin, unit, round_ticks(low, high, self.least, self.most)

    def grid(self, canvas: Canvas, top: float, bottom: float, words: bool = True) -> None:
        """Upright lines at the ticks; with ``words`` the numbers and the unit stand under them."""
        origin, unit, ticks = self._ticks()
        factor = dict(TIMES)[unit]
        for tick in ticks:
            x = self.x(origin + tick * factor)
            canvas.line([(x, top), (x, bottom + (4 if words else 0))], GRID, 1)
            if words:
                canvas.text(x, bottom + 17, f"{tick:.10g}", size=12)
        if words:
            since, middle = f" since {origin:.10g} s" if origin else "", self.left + self.width / 2
            canvas.text(middle, bottom + 34, f"time ({unit}){since} →", size=12, colour=palette.MUTED)


def caption_clause(caption: str) -> str:
    """A caption as a part of a sentence: "simulated: 2 × H100" becomes ", simulated (2 × H100)"."""
    head, colon, rest = caption.strip().rstrip(".").partition(": ")
    return f", {head} ({rest})" if colon else f", {head}" if head else ""


def over(start: float, end: float) -> str:
    """How long a picture's time is: "over 3.2 ms"."""
    return f"over {seconds_text(end - start)}"


# --- Numbers in words ---

SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))
TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def unit_for(value: float, units: tuple[tuple[str, float], ...]) -> tuple[str, float]:
    """The largest unit that is not larger than the value: its name and its size."""
    rounded = float(f"{abs(value):.3g}")  # 999.9 kB is written as 1 MB
    return next((unit for unit in units if rounded >= unit[1]), units[-1])


def _with_unit(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, factor = unit_for(value, units)
    rounded = float(f"{value / factor:.3g}")
    return f"{rounded:.15g} {unit}"


def size_text(nbytes: float) -> str:
    """Bytes in the unit that people use: "102 MB"."""
    return _with_unit(nbytes, SIZES)


def seconds_text(seconds: float) -> str:
    """A time given in seconds, with three digits: "32.8 ms"."""
    return _with_unit(seconds, TIMES) if seconds else "0 s"


def share_text(share: float) -> str:
    """A share from 0 to 1 in percent; "100 %" and "0 %" only where nothing is missing or nothing is there."""
    percent = 100 * share
    if 0.005 <= percent < 0.5:
        return "under 1 %"
    if 99.5 <= percent < 99.995:
        return "over 99 %"
    return f"{percent:.0f} %"


def round_ticks(low: float, high: float, least: int = 4, most: int = 7) -> list[float]:
    """Round numbers from ``low`` to ``high``: between ``least`` and ``most`` of them, equally far apart."""
    exponent = math.floor(math.log10((high - low) / most))
    found: list[tuple[bool, int, list[float]]] = []
    for power in range(exponent - 1, exponent + 3):
        for digit in (1.0, 2.0, 2.5, 5.0):
            step = digit * 10.0**power
            first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
            if least <= last - first + 1 <= most:
                decimals = max(0, -power) + (digit == 2.5)
                found.append(
                    (digit == 2.5, -(last - first), [round(i * step, decimals) for i in range(first, last + 1)])
                )
    return min(found)[2]


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """One sentence about a name that nobody knows, with the nearest one that exists."""
    known = list(known)
    near = difflib.get_close_matches(str(name).lower(), known, 1, 0.5)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} There are {', '.join(known)}."
