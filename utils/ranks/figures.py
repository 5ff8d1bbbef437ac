"""A matplotlib backend for ranks: drawn without a screen; ``plt.show()`` sends the figures to the notebook."""

from __future__ import annotations

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from utils.ranks import display


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *args: object, **kwargs: object) -> None:
        if display.publisher is not None:
            display.publisher.figures()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
