"""A matplotlib backend for ranks: drawn without a screen; ``plt.show()`` sends the figures to the notebook."""

from __future__ import annotations

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from utils.ranks import inside


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *args: object, **kwargs: object) -> None:
        if inside.publisher is not None:
            inside.publisher.figures()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
