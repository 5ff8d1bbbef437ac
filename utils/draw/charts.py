"""Line and bar charts in the course's colours, drawn by matplotlib (PNG).

Lines differ in colour, marker and dash; every bar has a hatch and its value beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from utils.draw import palette
from utils.draw.palette import Role
from utils.draw.picture import Picture, from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

Curve = tuple[Sequence[float], Sequence[float]]
EDGE = "#33333399"  # of bars, and so of their hatches: light enough that the colour stays


def lines(  # noqa: PLR0913
    curves: Mapping[str, Curve],
    x_label: str,
    y_label: str,
    title: str,
    alt: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    note: str = "",
    markers: bool = True,
    from_zero: bool = False,
) -> Picture:
    """A line chart.

    Args:
        curves: name → (x values, y values).
        x_label, y_label: with units.
        title: the sentence that the chart shows.
        alt: text alternative; None: title, axes, and first and last value of each line.
        log_x, log_y: logarithmic axes. The x axis then has its ticks at the x values of the first curve.
        note: caption below: "simulated", or the hardware's name.
        markers: draw a marker at each point (leave out for long curves).
        from_zero: the y axis begins at 0; a marker at 0 is drawn whole.
    """
    figure, axes = _empty(title, x_label, y_label, note)
    if len(curves) > len(palette.SERIES):
        raise ValueError(f"a chart with {len(curves)} lines cannot be read: at most {len(palette.SERIES)}")
    for (name, (x, y)), look in zip(curves.items(), palette.SERIES, strict=False):
        axes.plot(x, y, color=look.colour, linestyle=look.dash, marker=look.marker if markers else None,
                  markersize=6, linewidth=2, label=name, clip_on=not from_zero)  # fmt: skip
    if log_x:
        axes.set_xscale("log")
        ticks = list(next(iter(curves.values()))[0])
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.minorticks_off()
    elif all(float(value).is_integer() for x, _ in curves.values() for value in x):
        axes.locator_params(axis="x", integer=True)
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(_between_powers_of_ten())
    elif from_zero:
        axes.set_ylim(bottom=0)
    if len(curves) > 1:
        columns = 3 if len(curves) == 3 else 2
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize=10,
                    handlelength=3.2)  # fmt: skip
    axes.grid(True, color="#DDDDDD", linewidth=0.8)
    told = "; ".join(f"{name}: from {y[0]:.3g} to {y[-1]:.3g}" for name, (_, y) in curves.items() if len(y))
    return from_figure(figure, alt or f"{title}. {y_label} over {x_label}. {told}.")


def _between_powers_of_ten() -> LogFormatter:
    """Labels such as 30 (not 3 × 10¹) where a logarithmic axis is so short that powers of ten would say too little."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, value: float, position: int | None = None) -> str:
            return f"{value:g}" if super().__call__(value, position) else ""

    return Plain(minor_thresholds=(1, 0.4))


def bars(  # noqa: PLR0913
    values: Mapping[str, float],
    x_label: str,
    title: str,
    alt: str | None = None,
    log: bool = False,
    text: Callable[[float], str] = lambda value: f"{value:.3g}",
    roles: Mapping[str, Role] | None = None,
    note: str = "",
    axis: tuple[float, float] | None = None,
) -> Picture:
    """Horizontal bars with their values beside them, the first on top; dots on a logarithmic axis.

    Args:
        values: name → length of the bar.
        x_label: with the unit.
        title: the sentence that the chart shows.
        alt: text alternative; None: title and all values.
        log: logarithmic axis. It has no zero, so the length of a bar would mean nothing.
        text: how a value is written beside its bar.
        roles: name → role (colour and hatch); None: all bars are "compute". Roles that differ get a legend.
        note: caption below: "simulated", or the hardware's name.
        axis: its two ends, if they shall stay while a slider moves; None: what these bars need.
    """
    figure, axes = _empty(title, x_label, "", note, height=2.1 + 0.36 * len(values))
    labelled: set[str] = set()
    for position, (name, value) in enumerate(values.items()):
        role = roles[name] if roles else palette.COMPUTE
        label = role.name if roles and role.name not in labelled else None
        labelled.add(role.name)
        if log:
            axes.plot(value, position, "o", color=role.colour, markeredgecolor=EDGE, markersize=9, label=label)
        else:
            axes.barh(position, value, color=role.colour, hatch=role.hatch, edgecolor=EDGE, linewidth=0.8, label=label)
        axes.annotate(text(value), (value, position), xytext=(9 if log else 5, 0), textcoords="offset points",
                      va="center", fontsize=10, color=palette.INK)  # fmt: skip
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    top = max(values.values(), default=1.0)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(axis or (min(values.values()) / 2, top * 4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_xlim(axis or (0, top * 1.2))
    if len(labelled) > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=10)
    axes.grid(True, axis="both" if log else "x", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    told = "; ".join(f"{name}: {text(value)}" for name, value in values.items())
    return from_figure(figure, alt or f"{title}. {x_label}. {told}.")


def stacked_bars(
    values: Mapping[str, Mapping[str, float]],
    roles: Mapping[str, Role],
    x_label: str,
    title: str,
    alt: str | None = None,
    note: str = "",
    axis: tuple[float, float] | None = None,
) -> Picture:
    """Horizontal bars made of parts, the first bar on top, with their sums beside them.

    Args:
        values: name of the bar → part → length. A part that a bar does not have counts as 0.
        roles: part → role (colour and hatch), in the order in which the parts stand; the legend shows the parts' names.
        x_label, title: the unit, and the sentence that the chart shows.
        alt: text alternative; None: title and all values.
        note: caption below: "simulated", or the hardware's name.
        axis: as in ``bars``.
    """
    strange = {part for parts in values.values() for part in parts} - set(roles)
    if strange:
        raise ValueError(f"roles says nothing about {', '.join(sorted(strange))}")
    figure, axes = _empty(title, x_label, "", note, height=1.9 + 0.36 * len(values))
    ends = [0.0] * len(values)
    for part, role in roles.items():
        widths = [parts.get(part, 0.0) for parts in values.values()]
        if any(widths):
            drawn = axes.barh(list(values), widths, left=ends, label=part, color=role.colour, hatch=role.hatch,
                              edgecolor=EDGE, linewidth=0.8)  # fmt: skip
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
    if any(ends):
        axes.bar_label(drawn, [f"{end:.3g}" for end in ends], padding=5, fontsize=10, color=palette.INK)
    axes.invert_yaxis()
    axes.set_xlim(axis or (0, 1.1 * (max(ends, default=0.0) or 1.0)))
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=4, frameon=False, fontsize=9)
    told = [
        f"{name}: {', '.join(f'{part} {parts.get(part, 0.0):.3g}' for part in roles)}" for name, parts in values.items()
    ]
    return from_figure(figure, alt or f"{title}. {x_label}. {'; '.join(told)}.")


def loss_curves(
    losses: Mapping[str, Sequence[float]], title: str = "Training loss", x_label: str = "step", note: str = ""
) -> Picture:
    """One line for each name (a rank, a run): its loss after each step."""
    curves = {name: (range(1, len(values) + 1), list(values)) for name, values in losses.items()}
    return lines(curves, x_label, "loss", title, note=note, markers=max(map(len, losses.values()), default=0) <= 30)


def _empty(title: str, x_label: str, y_label: str, note: str, height: float = 4.0) -> tuple[Figure, Axes]:
    """A figure with nothing in it but its words. It is no part of pyplot, so nothing shows by itself."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.8, height), layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle(title, fontsize=13, fontweight="bold", color=palette.INK)
    axes.set_xlabel(x_label, fontsize=11)
    axes.set_ylabel(y_label, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if note:
        figure.supxlabel(note, fontsize=9, color=palette.MUTED)
    return figure, axes
