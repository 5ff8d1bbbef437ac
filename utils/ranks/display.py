"""What a rank shows: values of a cell's last line, figures, anything with a rich form, tracebacks.

It is also matplotlib's backend in ranks (MPLBACKEND): drawn without a screen; ``plt.show()`` sends the figures.
"""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import linecache
import pprint
import sys
import traceback
from typing import Any

from utils.ranks.iopub import IOPub
from utils.ranks.locate import HERE

_RICH = (
    "_repr_mimebundle_",
    "_repr_html_",
    "_repr_svg_",
    "_repr_png_",
    "_repr_jpeg_",
    "_repr_markdown_",
    "_repr_latex_",
)
publisher: DisplayPublisher | None = None  # of this rank: matplotlib finds it here
WIDGET = "application/vnd.jupyter.widget-view+json"


class DisplayPublisher:
    """Rich output: values with a rich form, ``display()``, matplotlib's figures."""

    def __init__(self, iopub: IOPub) -> None:
        self._iopub = iopub
        self._formatter: Any = None
        self._display_ids = 0
        global publisher
        publisher = self
        sys.meta_path.insert(0, _AfterImport("IPython.core.display_functions", self._adopt_ipython))
        sys.meta_path.insert(0, _AfterImport("tqdm.notebook", _plain_bars))

    def value(self, value: Any) -> str | None:
        """The value of a cell's last line: shown at once if it is rich, else its text is returned."""
        if value is None:
            return None
        if is_rich(value):
            self.display(value)
            return None
        return plain(value)

    def display(self, *objects: Any, display_id: Any = None, raw: bool = False, **options: Any) -> Any:
        """Stands in for IPython's display() in a rank."""
        if display_id is True:
            self._display_ids += 1
            display_id = f"display {self._display_ids}"
        if options.get("clear"):
            self.clear(wait=True)
        for thing in objects:
            data, metadata = (thing, options.get("metadata")) if raw else self.bundle(thing)
            self.publish(data, metadata, display_id=display_id, update=bool(options.get("update")))
        if display_id is not None and not options.get("update"):
            from IPython.core.display_functions import DisplayHandle

            return DisplayHandle(display_id)
        return None

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        display_id: str | None = None,
        update: bool = False,
        transient: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if WIDGET in data:
            note = "(a widget cannot leave its rank: print instead, or use tqdm.auto for a progress bar)"
            data = {"text/plain": note}
        data = {
            kind: base64.b64encode(content).decode() if isinstance(content, bytes) else content
            for kind, content in data.items()
        }
        message = {"event": "display", "data": data, "metadata": metadata or {}, "update": update}
        message["display_id"] = display_id or (transient or {}).get("display_id")
        self._iopub.send(message)

    def clear(self, wait: bool = False) -> None:
        """Stands in for IPython's clear_output() in a rank: forgets what this rank has shown in this cell."""
        self._iopub.send({"event": "clear"})

    def bundle(self, thing: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """All the forms of an object that a notebook may want, by mime type."""
        if self._formatter is None:
            from IPython.core.formatters import DisplayFormatter

            self._formatter = DisplayFormatter()
        if "matplotlib.figure" in sys.modules:
            from types import SimpleNamespace

            from IPython.core.pylabtools import select_figure_formats

            select_figure_formats(SimpleNamespace(display_formatter=self._formatter), {"png"})
        data, metadata = self._formatter.format(thing)
        return data or {"text/plain": repr(thing)}, metadata

    def figures(self) -> None:
        """Show and close every open figure, as notebooks do at the end of a cell."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            pyplot.close(number)
            self.display(figure)

    def _adopt_ipython(self, module: Any) -> None:
        module.display = self.display
        module.publish_display_data = self.publish
        module.clear_output = self.clear
        module.update_display = lambda thing, *, display_id, **options: self.display(
            thing, display_id=display_id, update=True, **options
        )


def _plain_bars(module: Any) -> None:
    """Progress bars of text for those who ask for widgets, which cannot leave a rank."""
    from tqdm import std

    module.tqdm = module.tqdm_notebook = std.tqdm
    module.trange = module.tnrange = std.trange


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with one module right after that module was imported for the first time."""

    def __init__(self, name: str, then: Any) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def run_then(module: Any) -> None:
            run(module)
            self._then(module)

        spec.loader.exec_module = run_then
        return spec


def is_rich(value: Any) -> bool:
    """Whether a notebook would show the value as more than text."""
    kind = type(value)
    if kind.__module__ == "builtins" or isinstance(value, type):
        return False
    return any(hasattr(kind, name) for name in _RICH) or (kind.__module__, kind.__name__) == (
        "matplotlib.figure",
        "Figure",
    )


def plain(value: Any) -> str:
    """The text of a value: containers one item a line when they are long, everything else as it prints itself."""
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return pprint.pformat(value, width=100, sort_dicts=False)
    return repr(value)


def traceback_text(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of this package."""
    whole = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = whole
    while one is not None:
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not frame.filename.startswith(HERE)]
        )
        one = one.__cause__ or one.__context__
    return "".join(whole.format())


def remember_source(file: str, source: str) -> None:
    """Let tracebacks show the lines of code that is in no file."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)


def __getattr__(name: str) -> Any:
    """What matplotlib asks its backend for; made only then, since most ranks draw nothing."""
    if name != "FigureCanvas":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureManager(FigureManagerBase):
        @classmethod
        def pyplot_show(cls, *args: object, **kwargs: object) -> None:
            if publisher is not None:
                publisher.figures()

    class FigureCanvas(FigureCanvasAgg):
        manager_class = FigureManager

    globals()[name] = FigureCanvas
    return FigureCanvas
