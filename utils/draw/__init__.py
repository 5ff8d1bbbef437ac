"""Pictures of the course: each function returns a ``Picture`` that shows itself, with a text alternative.

- Diagrams (SVG): ``words``, ``three_setups``, ``topology``, ``machine``, ``parallelism_map``,
  ``collectives``, ``cut_pair``.
- Charts (PNG): ``lines``, ``bars``, ``stacked_bars``, ``loss_curves``; of the α–β model: ``who_talks_over_what``,
  ``all_reduce_times``, ``all_reduce_algorithms``, ``all_reduce_on_nodes``.
- Of the simulated GPUs (SVG): ``timeline`` of ``Span``s, ``memory_over_time`` of ``MemorySeries``, ``memory_at_peak``,
  ``cluster_topology``.
- ``autograd_graph`` (SVG): the graph behind the output of ``nn.DataParallel``.
- ``series(function, step=range(8))``: every picture that sliders can choose, in one piece that needs no kernel.
- ``show(picture_or_figure, alt=…)`` displays any picture in the middle of a cell; ``palette`` holds the
  colours.
"""

from utils.draw import palette
from utils.draw.all_reduce import all_reduce_algorithms, all_reduce_on_nodes, all_reduce_times, who_talks_over_what
from utils.draw.autograd_graph import autograd_graph
from utils.draw.charts import bars, lines, loss_curves, stacked_bars
from utils.draw.clusters import cluster_topology, topology
from utils.draw.collectives import collectives
from utils.draw.cut_pair import cut_pair
from utils.draw.hardware import machine
from utils.draw.launching import agents_and_workers, decisions
from utils.draw.memory import MemorySeries
from utils.draw.memory_at_peak import memory_at_peak
from utils.draw.memory_over_time import memory_over_time
from utils.draw.parallelism import parallelism_map
from utils.draw.picture import Picture, from_figure, show
from utils.draw.series import Series, series
from utils.draw.spans import Span
from utils.draw.three_setups import three_setups
from utils.draw.timeline import timeline
from utils.draw.vocabulary import words

__all__ = [
    "MemorySeries",
    "Picture",
    "Series",
    "Span",
    "agents_and_workers",
    "all_reduce_algorithms",
    "all_reduce_on_nodes",
    "all_reduce_times",
    "autograd_graph",
    "bars",
    "cluster_topology",
    "collectives",
    "cut_pair",
    "decisions",
    "from_figure",
    "lines",
    "loss_curves",
    "machine",
    "memory_at_peak",
    "memory_over_time",
    "palette",
    "parallelism_map",
    "series",
    "show",
    "stacked_bars",
    "three_setups",
    "timeline",
    "topology",
    "who_talks_over_what",
    "words",
]
