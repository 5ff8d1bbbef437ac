"""What fills the GPUs' memory: the series that is drawn, and what both pictures of it share.

The pictures: ``memory_over_time`` and ``memory_at_peak``, each in the module of its name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from utils.draw import palette
from utils.draw.frame import caption_clause
from utils.draw.units import SIZES, round_ticks, size_text, unit_for, unknown

WIDTH = 900
MOST_GPUS = 8
KINDS = tuple(palette.MEMORY_KINDS)


@dataclass(frozen=True)
class MemorySeries:
    """What one GPU's memory holds, as time goes on.

    Args:
        name: "GPU 0".
        times: seconds, increasing (several at the same moment are allowed).
        bytes_by_kind: a kind in ``palette.MEMORY_KINDS`` → the bytes held from times[i] until times[i+1]. The last
            ones are held until the end of the picture; before the first there is nothing.
        capacity: bytes that the GPU has, if known.
    """

    name: str
    times: Sequence[float]
    bytes_by_kind: Mapping[str, Sequence[int]]
    capacity: int | None = None

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
    def of(totals: Sequence[int], capacities: Sequence[int | None], least: int, most: int) -> ByteScale:
        """Room for all totals, and for the capacities if that does not make the totals tiny."""
        highest = max(totals) or 1
        known = [capacity for capacity in capacities if capacity and capacity <= 4 * highest]
        top = 1.04 * max(highest, *known, 0)
        return ByteScale(top, round_ticks(0, top, least, most))

    def part(self, nbytes: float) -> float:
        return nbytes / self.top

    def shows(self, capacity: int | None) -> bool:
        return bool(capacity) and capacity <= self.top

    def words(self) -> list[str]:
        unit, factor = unit_for(self.ticks[-1], SIZES)
        return [f"{tick / factor:.6g} {unit}" for tick in self.ticks]


def check_kinds(name: str, held: Mapping[str, int]) -> None:
    for kind, nbytes in held.items():
        if kind not in palette.MEMORY_KINDS:
            raise ValueError(f"{name}: {unknown('kind of memory', kind, KINDS)}")
        if not nbytes >= 0:
            raise ValueError(f"{name}: nothing can hold {nbytes} bytes ({kind})")


def count_gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def held_text(nbytes: float, capacity: int | None) -> str:
    if not capacity:
        return size_text(nbytes)
    return f"{size_text(nbytes)}, more than {size_text(capacity)}" if nbytes > capacity else \
           f"{size_text(nbytes)} of {size_text(capacity)}"  # fmt: skip


def too_much(held: Mapping[str, int], capacity: int | None) -> bool:
    return bool(capacity) and sum(held.values()) > capacity


def legend_of(held: Iterable[Mapping[str, int]]) -> list[palette.Role]:
    """The kinds of which there is something."""
    present = {kind for each in held for kind, nbytes in each.items() if nbytes}
    return [role for kind, role in palette.MEMORY_KINDS.items() if kind in present]


def peaks_alt_text(
    opening: str,
    names: Sequence[str],
    peaks: Sequence[Mapping[str, int]],
    capacities: Sequence[int | None],
    title: str,
    caption: str,
) -> str:
    """The sentence for those who cannot see the picture: each GPU's peak and its largest kind."""
    parts = []
    for name, held, capacity in list(zip(names, peaks, capacities, strict=True))[:MOST_GPUS]:
        total = sum(held.values())
        most = max(KINDS, key=lambda kind: held.get(kind, 0))
        share = f", most of it {most} ({size_text(held[most])})" if total else ""
        if total and held[most] <= total / 2:
            share = f", the largest part {most} ({size_text(held[most])})"
        parts.append(f"{name} holds at most {held_text(total, capacity)}{share}")
    if len(names) > MOST_GPUS:
        parts.append(f"and {len(names) - MOST_GPUS} more")
    return (f"{title.rstrip('.')}. " if title else "") + f"{opening}{caption_clause(caption)}: {'; '.join(parts)}."
