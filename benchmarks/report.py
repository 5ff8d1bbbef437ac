"""The figures of the launcher benchmark as text: the machine, medians, ratios beside their targets, growth."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from contestants import IPYPARALLEL, NOTEBOOK_LAUNCHER, OURS, Contestant

from utils.ranks.output import text_table

FIGURES = {
    "first": "fresh kernel to the first result",
    "next": "the next cell",
    "bare": "– one that does nothing on the ranks",
    "empty": "– an empty cell of the kernel alone",
    "memory": "memory of kernel and idle ranks",
    "pull": "a tensor of 100 MB from each rank",
    "push": "a tensor of 100 MB to each rank",
}
# What this project promises: figure, beside whom, at most so many times theirs.
TARGETS = (
    ("first", IPYPARALLEL, 0.09),
    ("first", NOTEBOOK_LAUNCHER, 0.75),
    ("next", IPYPARALLEL, 0.2),
    ("next", NOTEBOOK_LAUNCHER, 0.05),
    ("memory", IPYPARALLEL, 0.3),
)
LIMITS = (("next", 4, 3e-3), ("next", 16, 12e-3))  # figure, ranks, at most so many seconds


@dataclass(frozen=True)
class Run:
    """What one run of one contestant gave: seconds, bytes of memory, and bytes a second of ``pull`` and ``push``."""

    contestant: str
    ranks: int
    round: int
    first: float
    next: float
    memory: int
    processes: int
    empty: float
    bare: float | None = None
    pull: float | None = None
    push: float | None = None


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


@dataclass(frozen=True)
class Limit:
    """Our median in seconds on so many ranks; ``lowest`` and ``highest`` are single rounds."""

    figure: str
    ranks: int
    seconds: float
    lowest: float
    highest: float
    target: float

    @property
    def met(self) -> bool:
        return self.seconds <= self.target


def limits(runs: Sequence[Run]) -> list[Limit]:
    """Every promised time for which there are runs."""
    found = []
    for figure, ranks, target in LIMITS:
        if values := _by_round(runs, OURS, ranks, figure).values():
            found.append(Limit(figure, ranks, statistics.median(values), min(values), max(values), target))
    return found


def ratios(runs: Sequence[Run], ranks: int) -> list[Ratio]:
    """Every promised ratio for which there are runs."""
    found = []
    for figure, peer, target in TARGETS:
        ours, theirs = _by_round(runs, OURS, ranks, figure), _by_round(runs, peer, ranks, figure)
        both = ours.keys() & theirs.keys()
        if both:
            paired = [ours[number] / theirs[number] for number in both]
            ratio = statistics.median(ours[n] for n in both) / statistics.median(theirs[n] for n in both)
            found.append(Ratio(figure, peer.name, ratio, min(paired), max(paired), target))
    return found


def report(
    facts: dict[str, str], chosen: Sequence[Contestant], runs: Sequence[Run], ranks: int, notes: Sequence[str]
) -> str:
    """All that the benchmark prints."""
    blocks = [_two_columns(facts), _two_columns({one.name: one.how for one in chosen})]
    blocks.append(_medians(chosen, runs, ranks))
    found, bounds = ratios(runs, ranks), limits(runs)
    if found:
        blocks.append(_ratios(found))
    if bounds:
        blocks.append(_limits(bounds))
    blocks.append(_growth(chosen, runs))
    if notes:
        blocks.append("\n".join(notes))
    if found:
        blocks.append(_verdict(found, bounds))
    return "\n\n".join(blocks)


def _medians(chosen: Sequence[Contestant], runs: Sequence[Run], ranks: int) -> str:
    rounds = len({run.round for run in runs if run.ranks == ranks})
    rows = [[f"{ranks} ranks, medians of {rounds} rounds (lowest – highest)", *(one.name for one in chosen)]]
    for figure, words in FIGURES.items():
        rows.append([words, *(_spread(figure, _by_round(runs, one, ranks, figure).values()) for one in chosen)])
    counts = [_by_round(runs, one, ranks, "processes").values() for one in chosen]
    rows.append(["processes", *(f"{statistics.median(count):.0f}" if count else "–" for count in counts)])
    return _table(rows)


def _ratios(found: Sequence[Ratio]) -> str:
    rows = [["ratio of medians: %%ranks beside …", "ratio", "single rounds", "target", ""]]
    for one in found:
        name = f"{FIGURES[one.figure]}, {one.peer}"
        span = f"{one.lowest:.3f} – {one.highest:.3f}"
        rows.append([name, f"{one.ratio:.3f}", span, f"≤ {one.target:g}", "met" if one.met else "missed"])
    return _table(rows)


def _limits(found: Sequence[Limit]) -> str:
    rows = [["times of %%ranks", "median", "single rounds", "target", ""]]
    for one in found:
        span = f"{_show(one.figure, one.lowest)} – {_show(one.figure, one.highest)}"
        name, target = f"{FIGURES[one.figure]}, {one.ranks} ranks", f"≤ {_show(one.figure, one.target)}"
        rows.append([name, _show(one.figure, one.seconds), span, target, "met" if one.met else "missed"])
    return _table(rows)


def _growth(chosen: Sequence[Contestant], runs: Sequence[Run]) -> str:
    sizes = sorted({run.ranks for run in runs})
    heads = [f"{size} ranks" for size in sizes]
    rows = [["growth with the number of ranks (medians)", "", *heads, f"{sizes[-1]} : {sizes[0]} ranks"]]
    for figure, words in FIGURES.items():
        if figure in ("pull", "push", "empty"):
            continue
        for index, one in enumerate(chosen):
            values = [_by_round(runs, one, size, figure).values() for size in sizes]
            medians = [statistics.median(some) if some else None for some in values]
            growth = f"{medians[-1] / medians[0]:.1f}×" if medians[0] and medians[-1] else "–"
            rows.append([words if index == 0 else "", one.name, *(_show(figure, one) for one in medians), growth])
    rows.append(["rounds", "", *(str(len({r.round for r in runs if r.ranks == size})) for size in sizes), ""])
    return _table(rows)


def _verdict(found: Sequence[Ratio], bounds: Sequence[Limit]) -> str:
    met = sum(one.met for one in [*found, *bounds])
    lines = [f"{met} of {len(found) + len(bounds)} targets are met."]
    for one in [one for one in found if not one.met]:
        lines.append(
            f"Missed: {FIGURES[one.figure]} is {one.ratio:.3f} times {one.peer}'s, "
            f"and was to be at most {one.target:g} times."
        )
    for limit in [limit for limit in bounds if not limit.met]:
        lines.append(
            f"Missed: {FIGURES[limit.figure]} on {limit.ranks} ranks takes {_show(limit.figure, limit.seconds)}, "
            f"and was to take at most {_show(limit.figure, limit.target)}."
        )
    return "\n".join(lines)


def _by_round(runs: Sequence[Run], one: Contestant, ranks: int, figure: str) -> dict[int, float]:
    mine = {run.round: getattr(run, figure) for run in runs if (run.contestant, run.ranks) == (one.name, ranks)}
    return {number: value for number, value in mine.items() if value is not None}


def _spread(figure: str, values: Collection[float]) -> str:
    if not values:
        return "–"
    low, high = _show(figure, min(values)), _show(figure, max(values))
    return f"{_show(figure, statistics.median(values))} ({low} – {high})"


def _show(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    if figure in ("pull", "push"):
        return f"{value / 1e9:.2f} GB/s"
    if figure == "memory":
        return f"{value / 1e6:.0f} MB"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = text_table(rows)
    return "\n".join([lines[0], "–" * max(map(len, lines)), *lines[1:]])


def _two_columns(pairs: dict[str, str]) -> str:
    return "\n".join(text_table([*pairs.items()]))
