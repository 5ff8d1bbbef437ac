"""Pictures of a search: a table of settings, what a search tried, how results scatter, and what rungs cut off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from utils.draw import palette
from utils.draw.picture import Picture, from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet
    from matplotlib.figure import Figure

Point = tuple[float, float, int]
"""Learning rate, batch size, and for how many epochs it was trained."""


def landscape(
    losses: Sequence[Sequence[float]],
    rates: Sequence[float],
    batches: Sequence[int],
    title: str,
    tried: Mapping[str, Sequence[Point]] | None = None,
    note: str = "",
) -> Picture:
    """The loss over learning rate and batch size, dark where it is low, hatched where it is guessing.

    Args:
        losses: a row for each batch size, a column for each learning rate.
        title: the sentence that the picture shows.
        tried: name of a search → what it tried; each gets a panel of its own, with a dot for each setting, the larger
            the longer it was trained. None: one panel without dots.
        note: caption below: where the numbers come from.
    """
    panels = dict(tried or {"": ()})
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = _figure(title, 3.6 if rows == columns == 1 else 0.7 + 2.3 * rows)
    drawn = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (name, points) in zip(drawn, panels.items(), strict=False):
        floor = _floor(axes, losses, rates, batches)
        axes.set_title(name, fontsize=10, color=palette.INK)
        if points:
            x, y, epochs = zip(*points, strict=True)
            axes.scatter(
                x, y, s=[10 + 3 * n for n in epochs], color=palette.VERMILION, edgecolor="white", linewidth=0.8
            )
    for axes in drawn[len(panels) :]:
        axes.set_visible(False)
    scale = figure.colorbar(floor, ax=list(drawn), spacing="uniform", ticks=_LEVELS[:-2], format="%g", label="loss")
    scale.ax.tick_params(labelsize=9)
    figure.supxlabel("learning rate" + (f"\n{note}" if note else ""), fontsize=10, color=palette.INK)
    figure.supylabel("batch size", fontsize=10, color=palette.INK)
    best, batch, rate = min((loss, b, r) for b, row in zip(batches, losses, strict=True)
                            for r, loss in zip(rates, row, strict=True))  # fmt: skip
    told = "".join(f" {name}: {len(points)} settings tried." for name, points in panels.items() if points)
    words = f"{title}. The lowest loss, {best:.3g}, is at learning rate {rate:.3g} and batch size {batch}.{told}"
    return from_figure(figure, words)


def scatter(values: Mapping[str, Sequence[float]], x_label: str, title: str, note: str = "") -> Picture:
    """A row of dots for each name, one for each repeat, and a bar at their median, which the legend names.

    Args:
        values: name → the result of each repeat.
        x_label: what the result is, with its unit.
        title: the sentence that the picture shows.
        note: caption below.

    The axis is logarithmic above 1; below it are even steps, so that it has a zero.
    """
    from statistics import median

    figure = _figure(title, 1.3 + 0.42 * len(values))
    axes = figure.add_subplot()
    for row, found in enumerate(values.values()):
        shifts = [
            row + 0.3 * ((7 * i) % 11 - 5) / 11 for i in range(len(found))
        ]  # so that equal dots show side by side
        axes.scatter(found, shifts, s=22, color=palette.SKY_BLUE, edgecolor=palette.INK, linewidth=0.5)
        bar = [row - 0.35, row + 0.35]
        axes.plot([median(found)] * 2, bar, color=palette.VERMILION, linewidth=3, label=None if row else "median")
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=min(0, *map(min, values.values())))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=10)
    axes.grid(True, axis="x", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x_label + (f"\n{note}" if note else ""), fontsize=10)
    told = "; ".join(f"{name}: {min(found):.3g} to {max(found):.3g}, median {median(found):.3g}"
                     for name, found in values.items())  # fmt: skip
    return from_figure(figure, f"{title}. {x_label}, of each repeat. {told}.")


def races(values: Mapping[str, Sequence[Sequence[float]]], x: Sequence[float], x_label: str, y_label: str, title: str,
          against: str, note: str = "") -> Picture:  # fmt: skip
    """A panel for each name: the median of its repeats over x, the middle half of them, and the median of one of all.

    Args:
        values: name → for each x, the result of each repeat.
        x: for all of them.
        x_label, y_label: with units; y is logarithmic above 1, and has a zero.
        title: the sentence that the picture shows.
        against: the name whose median is drawn in each panel, in grey, for comparison.
        note: caption below.
    """
    from statistics import median, quantiles

    middle = {name: [median(at) for at in rows] for name, rows in values.items()}
    panels = [name for name in values if name != against]
    figure = _figure(title, 0.9 + 2.1 * math.ceil(len(panels) / 3))
    drawn = figure.subplots(math.ceil(len(panels) / 3), 3, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, name in zip(drawn, panels, strict=False):
        low, _, high = zip(*[quantiles(at, n=4) for at in values[name]], strict=True)
        axes.fill_between(x, low, high, color=palette.SKY_BLUE, alpha=0.5, linewidth=0, label="middle half")
        axes.plot(
            x, middle[against], color=palette.DARK_GREY, linewidth=1.5, linestyle="--", label=f"median of {against}"
        )
        axes.plot(x, middle[name], color=palette.BLUE, linewidth=2, label="median")
        axes.set_title(name, fontsize=10, color=palette.INK)
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(True, color="#DDDDDD", linewidth=0.8)
        axes.tick_params(labelsize=9)
    for axes in drawn[len(panels) :]:
        axes.set_visible(False)
    drawn[0].legend(loc="lower left", frameon=False, fontsize=8)
    figure.supxlabel(x_label + (f"\n{note}" if note else ""), fontsize=10, color=palette.INK)
    figure.supylabel(y_label, fontsize=10, color=palette.INK)
    told = "; ".join(f"{name}: {found[0]:.3g} to {found[-1]:.3g}" for name, found in middle.items())
    return from_figure(figure, f"{title}. {y_label} over {x_label}, medians. {told}.")


def rungs(curves: Sequence[Sequence[float]], at: Sequence[int], title: str, note: str = "") -> Picture:
    """Learning curves of trials, each drawn as far as it was trained, and the rungs that cut them.

    Args:
        curves: losses of each trial, from epoch 1 to where it was stopped.
        at: the epochs of the rungs.
        title: the sentence that the picture shows.
        note: caption below.
    """
    figure = _figure(title, 4.0)
    axes = figure.add_subplot()
    longest = max(map(len, curves))
    for curve in sorted(curves, key=len):
        going_on = len(curve) == longest
        look = {"color": palette.BLUE, "linewidth": 2.4} if going_on else {"color": palette.DARK_GREY, "linewidth": 1.1}
        axes.plot(range(1, len(curve) + 1), curve, **look)
        axes.plot(len(curve), curve[-1], "o" if going_on else "x", color=look["color"], markersize=7)
    left = [sum(len(curve) > rung for curve in curves) for rung in at]
    axes.set_xscale("log")
    axes.set_yscale("log")
    for rung, more in zip(at, left, strict=True):
        axes.axvline(rung, color=palette.VERMILION, linewidth=1.4, linestyle="--")
        axes.annotate(f"{more} go on", (rung, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -12),
                      textcoords="offset points", fontsize=10, color=palette.INK)  # fmt: skip
    axes.set_xticks([*at, longest], [f"{tick}" for tick in (*at, longest)])
    axes.minorticks_off()
    axes.set_yticks(ticks := [tick for tick in (0.1, 0.2, 0.5, 1, 2) if tick > min(map(min, curves)) / 1.5],
                    [f"{tick:g}" for tick in ticks])  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("epoch" + (f"\n{note}" if note else ""), fontsize=10)
    axes.set_ylabel("loss on the validation images", fontsize=10)
    told = ", ".join(f"{more} go on after epoch {rung}" for rung, more in zip(at, left, strict=True))
    return from_figure(figure, f"{title}. {len(curves)} trials: {told}. A cross is where a trial was stopped.")


def _figure(title: str, height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.8, height), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", color=palette.INK)
    return figure


_LEVELS = (0.0, 0.1, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 2.29, 2.31)  # of the loss; the last: guessing


def _floor(
    axes: Axes, losses: Sequence[Sequence[float]], rates: Sequence[float], batches: Sequence[int]
) -> QuadContourSet:
    shades = [str(0.35 + 0.65 * i / (len(_LEVELS) - 2)) for i in range(len(_LEVELS) - 1)]
    hatches = [*[None] * (len(shades) - 1), "///"]
    floor = axes.contourf(rates, batches, losses, levels=_LEVELS, colors=shades, hatches=hatches)
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_yticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    ticks = [10.0**power for power in range(math.ceil(math.log10(rates[0])), math.floor(math.log10(rates[-1])) + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(rates[0] / 1.25, rates[-1] * 1.25)
    axes.set_ylim(batches[0] / 1.25, batches[-1] * 1.25)
    axes.tick_params(labelsize=9)
    return floor
