"""Pictures: each function returns a ``Picture`` that shows itself, with a text alternative.

- ``palette``: what each colour and hatch means; ``svg``: a small canvas for diagrams; ``frame``: title, legend, time
  axis and caption around them, and numbers in words.
- ``picture``: how a picture gets into a notebook; ``show(picture_or_figure, alt=…)`` in the middle of a cell.
- ``series``: every picture that sliders can choose, in one piece that needs no kernel.
- ``charts`` (PNG): ``lines``, ``bars``, ``stacked_bars``, ``loss_curves``.
- ``clusters`` (SVG): ``topology`` of ranks on nodes.
- ``timeline`` of ``Span``s (SVG).

What one lecture alone draws is in ``lessons.pictures``, and the memory of simulated GPUs in ``simgpu``.
"""

from utils.draw import palette
from utils.draw.charts import bars, lines, loss_curves, stacked_bars
from utils.draw.clusters import topology
from utils.draw.picture import Picture, from_figure, show
from utils.draw.series import Series, series
from utils.draw.timeline import Span, timeline

__all__ = [
    "Picture",
    "Series",
    "Span",
    "bars",
    "from_figure",
    "lines",
    "loss_curves",
    "palette",
    "series",
    "show",
    "stacked_bars",
    "timeline",
    "topology",
]
