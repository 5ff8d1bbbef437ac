"""Numbers as people write them: sizes in decimal units (1 GB is 10⁹ bytes), times, shares, and round ticks."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

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
