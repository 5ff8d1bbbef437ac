"""Pictures of a search: what a table of settings looks like, which of them a search tried, and how results scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from utils.draw import palette
from utils.draw.picture import Picture, from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float, int]
"""Learning rate, batch size, and for how many epochs it was trained."""


def landscape(
    losses: Sequence[Sequence[float]],
    rates: Sequence[float],
    batches: Sequence[int],
    title: str,
    tried: Mapping[str, Sequence[Point]] | None = None,
    note: str = "",
    alt: str | None = None,
) -> Picture:
    """The loss over learning rate and batch size, dark where it is low, hatched where it is guessing.

    Args:
        losses: a row for each batch size, a column for each learning rate.
        title: the sentence that the picture shows.
        tried: name of a search → what it tried; each gets a panel of its own, with a dot for each setting, the larger
            the longer it was trained. None: one panel without dots.
        note: caption below: where the numbers come from.
        alt: text alternative; None: the title, the best setting, and how many settings each search tried.
    """
    from matplotlib.figure import Figure

    panels = dict(tried or {"": ()})
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(7.8, 3.6 if rows == columns == 1 else 0.7 + 2.3 * rows), layout="constrained")
    drawn = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (name, points) in zip(drawn, panels.items(), strict=False):
        _floor(axes, losses, rates, batches, words=len(panels) == 1)
        axes.set_title(name, fontsize=10, color=palette.INK)
        if points:
            x, y, epochs = zip(*points, strict=True)
            axes.scatter(
                x, y, s=[10 + 3 * n for n in epochs], color=palette.VERMILION, edgecolor="white", linewidth=0.8
            )
    for axes in drawn[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=palette.INK)
    figure.supxlabel("learning rate" + (f"\n{note}" if note else ""), fontsize=10, color=palette.INK)
    figure.supylabel("batch size", fontsize=10, color=palette.INK)
    best, batch, rate = min((loss, b, r) for b, row in zip(batches, losses, strict=True)
                            for r, loss in zip(rates, row, strict=True))  # fmt: skip
    told = "".join(f" {name}: {len(points)} settings tried." for name, points in panels.items() if points)
    words = f"{title}. The lowest loss, {best:.3g}, is at learning rate {rate:.3g} and batch size {batch}.{told}"
    return from_figure(figure, alt or words)


def scatter(
    values: Mapping[str, Sequence[float]], x_label: str, title: str, note: str = "", log: bool = True
) -> Picture:
    """A row of dots for each name, one for each repeat, and a bar at their median.

    Args:
        values: name → the result of each repeat.
        x_label: what the result is, with its unit.
        title: the sentence that the picture shows.
        note: caption below.
        log: logarithmic axis.
    """
    from statistics import median

    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.8, 1.3 + 0.42 * len(values)), layout="constrained")
    axes = figure.add_subplot()
    for row, found in enumerate(values.values()):
        shifts = [
            row + 0.3 * ((7 * i) % 11 - 5) / 11 for i in range(len(found))
        ]  # so that equal dots show side by side
        axes.scatter(found, shifts, s=22, color=palette.SKY_BLUE, edgecolor=palette.INK, linewidth=0.5)
        axes.plot([median(found)] * 2, [row - 0.35, row + 0.35], color=palette.VERMILION, linewidth=3)
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, axis="x", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(x_label + (f"\n{note}" if note else ""), fontsize=10)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=palette.INK)
    told = "; ".join(f"{name}: {min(found):.3g} to {max(found):.3g}, median {median(found):.3g}"
                     for name, found in values.items())  # fmt: skip
    return from_figure(figure, f"{title}. {x_label}, of each repeat. {told}.")


def _floor(
    axes: Axes, losses: Sequence[Sequence[float]], rates: Sequence[float], batches: Sequence[int], words: bool
) -> None:
    levels = (0.0, 0.1, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 2.29, 2.31)  # the last: guessing
    shades = [str(0.45 + 0.55 * i / (len(levels) - 2)) for i in range(len(levels) - 1)]
    hatches = [*[None] * (len(shades) - 1), "///"]
    axes.contourf(rates, batches, losses, levels=levels, colors=shades, hatches=hatches)
    lines = axes.contour(rates, batches, losses, levels=levels[1:-2], colors=palette.INK, linewidths=0.6)
    if words:
        axes.clabel(lines, fontsize=8, fmt="%g")
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_yticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    ticks = [10.0**power for power in range(math.ceil(math.log10(rates[0])), math.floor(math.log10(rates[-1])) + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(rates[0] / 1.25, rates[-1] * 1.25)
    axes.set_ylim(batches[0] / 1.25, batches[-1] * 1.25)
    axes.tick_params(labelsize=9)
