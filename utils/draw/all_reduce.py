"""Charts of the α–β model: how long a gradient travels. All numbers are computed by ``utils.hardware.links``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from utils.draw import palette
from utils.draw.charts import bars, lines
from utils.draw.palette import Role
from utils.draw.picture import Picture
from utils.draw.units import size_text
from utils.hardware import links
from utils.hardware.links import Link
from utils.training.models import RESNET50_GRADIENT_BYTES

NOTE = "computed with the α–β model from data-sheet speeds (utils/hardware/links), not measured"
GPUS = (2, 4, 8, 16, 32, 64)

_PLACES = {"network": "network between nodes", "PCIe": "PCIe inside a node", "NVLink": "NVLink inside a node"}
ALGORITHMS: dict[str, Callable[[float, int, Link], float]] = {
    "ring": links.ring_all_reduce,
    "tree": links.tree_all_reduce,
    "through rank 0": links.naive_all_reduce,
}
"""The all-reduce algorithms that a chart can compare, each as f(bytes, ranks, link)."""


def _place(link: Link) -> Role:
    """The link's family as a role: its colour in all pictures, with its place for the legend."""
    return Role(_PLACES[link.family], palette.LINKS[link.family].colour, "")


def time_text(milliseconds: float) -> str:
    """A time given in milliseconds, with three digits: "32.8 ms"."""
    return f"{milliseconds:.3g} ms" if milliseconds >= 0.1 else f"{milliseconds * 1000:.3g} µs"


def who_talks_over_what(
    nbytes: float = RESNET50_GRADIENT_BYTES, chosen: Sequence[Link] = links.ALL, what: str = "one ResNet-50 gradient"
) -> Picture:
    """The ladder of links: how long each needs for one message (default: the gradient of ResNet-50)."""
    times = {link.label: 1e3 * links.point_to_point(nbytes, link) for link in chosen}
    return bars(
        times,
        "milliseconds (logarithmic scale)",
        f"Sending {what} ({size_text(nbytes)}) over one link",
        log=True,
        text=time_text,
        roles={link.label: _place(link) for link in chosen},
        note=NOTE,
    )


def all_reduce_times(
    nbytes: float = RESNET50_GRADIENT_BYTES,
    gpus: Sequence[int] = GPUS,
    chosen: Sequence[Link] = (links.ETHERNET_25, links.PCIE4, links.INFINIBAND_NDR, links.NVLINK4),
    algorithm: str = "ring",
) -> Picture:
    """Time of one all-reduce against the number of GPUs, one line for each link.

    Args:
        nbytes: size of the gradient in bytes.
        gpus: numbers of GPUs, one rank on each.
        chosen: links to compare.
        algorithm: a name in ``ALGORITHMS``.
    """
    cost = ALGORITHMS[algorithm]
    curves = {link.name: (gpus, [1e3 * cost(nbytes, p, link) for p in gpus]) for link in chosen}
    title = f"All-reduce of {size_text(nbytes)}: {algorithm}"
    return lines(curves, "number of GPUs", "milliseconds", title, log_x=True, log_y=True, note=NOTE)


def all_reduce_algorithms(
    nbytes: float = RESNET50_GRADIENT_BYTES, gpus: Sequence[int] = GPUS, link: Link = links.ETHERNET_25
) -> Picture:
    """Time of one all-reduce against the number of GPUs, one line for each algorithm, all over the same link."""
    curves = {name: (gpus, [1e3 * cost(nbytes, p, link) for p in gpus]) for name, cost in ALGORITHMS.items()}
    title = f"All-reduce of {size_text(nbytes)} over {link.name}"
    return lines(curves, "number of GPUs", "milliseconds", title, log_x=True, log_y=True, note=NOTE)


def all_reduce_on_nodes(
    nbytes: float = RESNET50_GRADIENT_BYTES,
    nodes: Sequence[int] = (1, 2, 4, 8, 16),
    per_node: int = 8,
    inside: Link = links.NVLINK4,
    between: Link = links.ETHERNET_25,
    nics_per_node: int = 1,
) -> Picture:
    """Time of one all-reduce against the number of nodes: one flat ring, and the hierarchical way."""
    flat = [1e3 * links.flat_ring_all_reduce(nbytes, n, per_node, inside, between) for n in nodes]
    tall = [1e3 * links.hierarchical_all_reduce(nbytes, n, per_node, inside, between, nics_per_node) for n in nodes]
    curves = {"one ring through all GPUs": (nodes, flat), "first inside the nodes, then between": (nodes, tall)}
    cards = "1 network card" if nics_per_node == 1 else f"{nics_per_node} network cards"
    title = f"All-reduce of {size_text(nbytes)}: {per_node} GPUs and {cards} per node\n{inside.name}, {between.name}"
    return lines(curves, "number of nodes", "milliseconds", title, log_x=True, note=NOTE)
