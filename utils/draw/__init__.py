"""Pictures of the course: each function returns a ``Picture`` that shows itself, with a text alternative.

Diagrams (SVG): ``topology``, ``words``, ``three_setups``.
"""

from utils.draw.show import Picture, show
from utils.draw.topology import three_setups, topology
from utils.draw.words import words

__all__ = ["Picture", "show", "three_setups", "topology", "words"]
