"""The figures of the launcher benchmark as text: the machine, medians, ratios beside their targets, growth."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contestants import IPYPARALLEL, NOTEBOOK_LAUNCHER, OURS, Contestant
from fresh_kernel import ROOT

if TYPE_CHECKING:
    from launcher import Run

FIGURES = {
    "first": "fresh kernel to the first result",
    "next": "the next cell",
    "memory": "memory of kernel and idle ranks",
}
# What this project promises: figure, beside whom, at most so many times theirs.
TARGETS = (
    ("first", IPYPARALLEL, 0.12),
    ("first", NOTEBOOK_LAUNCHER, 1.0),
    ("next", IPYPARALLEL, 0.4),
    ("next", NOTEBOOK_LAUNCHER, 0.05),
    ("memory", IPYPARALLEL, 0.3),
)


@dataclass(frozen=True)
class Ratio:
    """Our median over a peer's; ``lowest`` and ``highest`` are those of single rounds."""

    figure: str
    peer: str
    ratio: float
    lowest: float
    highest: float
    target: float

    @property
    def met(self) -> bool:
        return self.ratio <= self.target


def ratios(runs: Sequence[Run], ranks: int) -> list[Ratio]:
    """Every promised ratio for which there are runs."""
    found = []
    for figure, peer, target in TARGETS:
        ours, theirs = _values(runs, OURS.name, ranks, figure), _values(runs, peer.name, ranks, figure)
        if ours and theirs:
            paired = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            ratio = statistics.median(ours) / statistics.median(theirs)
            found.append(Ratio(figure, peer.name, ratio, min(paired), max(paired), target))
    return found


def facts(packages: Sequence[str]) -> dict[str, str]:
    """Machine, date and versions: without them a figure says nothing. Call it before the runs begin."""
    sys.path.insert(0, str(ROOT))
    from utils import machine

    here = machine.look()
    cores = f"{here.usable_cpus} of {here.logical_cpus} logical processors"
    memory = f"{here.memory_bytes / 2**30:.0f} GiB" if here.memory_bytes else machine.UNKNOWN
    wanted = dict.fromkeys(["torch", "ipykernel", "ipython", *packages])
    versions = [f"{name} {importlib.metadata.version(name)}" for name in wanted]
    return {
        "machine": f"{here.cpu}, {cores}, {memory} of memory, {here.system}",
        "load before": f"{os.getloadavg()[0]:.2f} (processes at work in the minute before; 0 is a quiet machine)",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
    }


def report(
    facts: dict[str, str], chosen: Sequence[Contestant], runs: Sequence[Run], ranks: int, notes: Sequence[str]
) -> str:
    """All that the benchmark prints."""
    blocks = [_two_columns(facts), _two_columns({one.name: one.how for one in chosen})]
    blocks.append(_medians(chosen, runs, ranks))
    found = ratios(runs, ranks)
    if found:
        blocks.append(_ratios(found))
    blocks.append(_growth(chosen, runs, ranks))
    if notes:
        blocks.append("\n".join(notes))
    if found:
        blocks.append(_verdict(found))
    return "\n\n".join(blocks)


def _medians(chosen: Sequence[Contestant], runs: Sequence[Run], ranks: int) -> str:
    rounds = len(_values(runs, chosen[0].name, ranks, "first"))
    rows = [[f"{ranks} ranks, median of {rounds} rounds (lowest – highest)", *(one.name for one in chosen)]]
    for figure, words in FIGURES.items():
        row = [words]
        for one in chosen:
            values = _values(runs, one.name, ranks, figure)
            middle, low, high = (_show(figure, value) for value in (statistics.median(values), *_ends(values)))
            row.append(f"{middle} ({low.split()[0]} – {high.split()[0]})" if low.split()[1] == high.split()[1] else
                       f"{middle} ({low} – {high})")
        rows.append(row)
    rows.append(["processes", *(f"{_median(runs, one.name, ranks, 'processes'):.0f}" for one in chosen)])
    return _table(rows)


def _ratios(found: Sequence[Ratio]) -> str:
    rows = [["ratio of medians: %%ranks beside …", "ratio", "single rounds", "target", ""]]
    for one in found:
        name = f"{FIGURES[one.figure]}, {one.peer}"
        span = f"{one.lowest:.3f} – {one.highest:.3f}"
        rows.append([name, f"{one.ratio:.3f}", span, f"≤ {one.target:g}", "met" if one.met else "missed"])
    return _table(rows)


def _growth(chosen: Sequence[Contestant], runs: Sequence[Run], ranks: int) -> str:
    sizes = sorted({run.ranks for run in runs})
    rounds = [len(_values(runs, chosen[0].name, size, "first")) for size in sizes]
    heads = [f"{size} ranks" for size in sizes]
    rows = [["growth with the number of ranks (medians)", "", *heads, f"{sizes[-1]} : {sizes[0]} ranks"]]
    for figure, words in FIGURES.items():
        for index, one in enumerate(chosen):
            medians = [_median(runs, one.name, size, figure) for size in sizes]
            shown = [_show(figure, value) for value in medians]
            rows.append([words if index == 0 else "", one.name, *shown, f"{medians[-1] / medians[0]:.1f}×"])
    rows.append(["rounds", "", *map(str, rounds), ""])
    return _table(rows)


def _verdict(found: Sequence[Ratio]) -> str:
    missed = [one for one in found if not one.met]
    lines = [f"{len(found) - len(missed)} of {len(found)} targets are met."]
    for one in missed:
        lines.append(
            f"Missed: {FIGURES[one.figure]} is {one.ratio:.3f} times {one.peer}'s, "
            f"and was to be at most {one.target:g} times."
        )
    return "\n".join(lines)


def _values(runs: Sequence[Run], name: str, ranks: int, figure: str) -> list[float]:
    return [getattr(run, figure) for run in runs if (run.contestant, run.ranks) == (name, ranks)]


def _median(runs: Sequence[Run], name: str, ranks: int, figure: str) -> float:
    return statistics.median(_values(runs, name, ranks, figure))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _show(figure: str, value: float) -> str:
    if figure == "memory":
        return f"{value / 1e6:.0f} MB"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "–" * max(map(len, lines)), *lines[1:]])


def _two_columns(pairs: dict[str, str]) -> str:
    width = max(map(len, pairs))
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in pairs.items())
