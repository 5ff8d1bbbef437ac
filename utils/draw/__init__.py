"""Pictures of the course: each function returns a ``Picture`` that shows itself, with a text alternative.

- Diagrams (SVG): ``words``, ``three_setups``, ``topology``, ``machine``, ``parallelism_map``, ``course_map``.
- Charts (PNG): ``lines``, ``bars``, ``loss_curves``; of the α–β model: ``who_talks_over_what``,
  ``all_reduce_times``, ``all_reduce_algorithms``, ``all_reduce_on_nodes``.
- ``show(picture_or_figure, alt=…)`` displays any picture in the middle of a cell; ``palette`` holds the
  colours.
"""

from utils.draw import palette
from utils.draw.all_reduce import (
    all_reduce_algorithms,
    all_reduce_on_nodes,
    all_reduce_times,
    who_talks_over_what,
)
from utils.draw.charts import bars, lines, loss_curves
from utils.draw.clusters import three_setups, topology
from utils.draw.course import course_map
from utils.draw.hardware import machine
from utils.draw.parallelism import parallelism_map
from utils.draw.picture import Picture, show
from utils.draw.vocabulary import words

__all__ = [
    "Picture",
    "all_reduce_algorithms",
    "all_reduce_on_nodes",
    "all_reduce_times",
    "bars",
    "course_map",
    "lines",
    "loss_curves",
    "machine",
    "palette",
    "parallelism_map",
    "show",
    "three_setups",
    "topology",
    "who_talks_over_what",
    "words",
]
