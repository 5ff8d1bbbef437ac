"""The course's one place for colours: what each colour and hatch means, in every picture.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which people with any kind of colour vision
can tell apart. Colour never stands alone: every role also has a hatch, so that pictures work on a
black-and-white printer too.
"""

from __future__ import annotations

from dataclasses import dataclass

ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
BLACK = "#000000"
GREY = "#BBBBBB"
DARK_GREY = "#666666"

# Pictures bring their own light background, so that they read the same on light and dark pages.
PANEL = "#FFFFFF"
INK = "#1A1A1A"
MUTED = "#555555"
LINE = "#8A8A8A"
NODE = "#F2F2F2"
DEVICE = "#DCEBF7"
PROCESS = "#FFF3D6"


@dataclass(frozen=True)
class Role:
    """What a coloured area stands for.

    Args:
        name: the word for the legend.
        colour: fill, as #RRGGBB.
        hatch: matplotlib's spelling of the hatch, one of those in ``svg.HATCHES``.
    """

    name: str
    colour: str
    hatch: str


FORWARD = Role("forward", SKY_BLUE, "//")
BACKWARD = Role("backward", ORANGE, "\\\\")
COMMUNICATION = Role("communication", GREEN, "xx")
IDLE = Role("idle", GREY, "..")
MEMORY = Role("memory", PURPLE, "||")
COMPUTE = Role("compute", BLUE, "--")
OPTIMIZER = Role("optimizer", YELLOW, "++")
ERROR = Role("error", VERMILION, "oo")
LAUNCH = Role("launch", DARK_GREY, "**")
# The two halves of a backward pass that is cut in two: its orange, dark and light.
INPUT_GRADIENT = Role("input gradient", "#B36B00", "----")
WEIGHT_GRADIENT = Role("weight gradient", "#FFDFA0", "||||")

ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        *(FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT),
        *(COMMUNICATION, IDLE, MEMORY, COMPUTE, OPTIMIZER, ERROR, LAUNCH),
    )
}
"""Every role by its name."""

MEMORY_KINDS: dict[str, Role] = {
    role.name: role
    for role in (
        Role("parameters", PURPLE, "||"),
        Role("gradients", ORANGE, "\\\\"),
        Role("optimizer state", YELLOW, "++"),
        Role("activations", SKY_BLUE, "//"),
        Role("other", GREY, "--"),
    )
}
"""What fills a GPU's memory, from the bottom of the pile to its top. Each kind looks like the work that makes it:
activations like the forward pass, gradients like the backward pass, optimizer state like the optimizer."""


@dataclass(frozen=True)
class Series:
    """How the n-th line of a line chart looks: colour, marker and dash differ, all three."""

    colour: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]


SERIES: tuple[Series, ...] = (
    Series(BLUE, "o", "-"),
    Series(VERMILION, "s", "--"),
    Series(GREEN, "^", "-."),
    Series(PURPLE, "D", ":"),
    Series(ORANGE, "v", (0, (5, 1))),
    Series(BLACK, "x", (0, (1, 1))),
    Series(SKY_BLUE, "P", (0, (3, 1, 1, 1))),
)
"""Looks of lines, in the order in which they are used."""

LINKS: dict[str, Series] = {"NVLink": SERIES[2], "PCIe": SERIES[0], "network": SERIES[1]}
"""How a link looks in every picture, by its family: NVLink green, PCIe blue, networks vermilion."""
