"""Pictures that one lecture alone shows; what several draw with (palette, frame, charts, timelines) is ``utils.draw``.

- ``diagram(name)``: one of the files in ``diagrams``, which are drawn once and for all.
- ``start_here``: this machine, a step of data parallelism. ``autograd_graph``: what is behind DataParallel's output.
- ``all_reduce``: chunks step by step, rings, times by the α–β model. ``filling``: buckets while gradients arrive.
- ``dealing``: samples dealt to ranks, rows cut anew.
- ``side_by_side``: two programs, line by line. ``search``: what a search for good settings has tried.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from utils.draw.frame import unknown
from utils.draw.picture import Picture, from_svg

FILES = Path(__file__).with_name("diagrams")


def diagram(name: str) -> Picture:
    """A diagram without anything to choose: its file, whose ``<desc>`` is the text alternative.

    Raises:
        ValueError: there is no such file.
    """
    known = {file.stem: file for file in sorted(FILES.glob("*.svg"))}
    if name not in known:
        raise ValueError(unknown("diagram", name, known))
    svg = known[name].read_text(encoding="utf-8")
    root = ElementTree.fromstring(svg)
    return from_svg(svg, root.get("aria-label", ""), int(root.get("width", "")))
