"""What a rank prints and shows, on its way to the notebook: text, values, figures, anything with a rich form.

Text that Python prints and text that comes from below it (C++, a child process) keep their order: what waits in
the pipe of file descriptors 1 and 2 is forwarded before the next printed text is added.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.abc
import importlib.machinery
import io
import os
import pprint
import selectors
import sys
import threading
import time
from typing import Any

from utils.ranks.wire import Channel

_SEND_AT_BYTES = 1 << 16
_SEND_AFTER_SECONDS = 0.05
_RICH = (
    "_repr_mimebundle_",
    "_repr_html_",
    "_repr_svg_",
    "_repr_png_",
    "_repr_jpeg_",
    "_repr_markdown_",
    "_repr_latex_",
)
publisher: DisplayPublisher | None = None  # of this rank: the figures backend finds it here
WIDGET = "application/vnd.jupyter.widget-view+json"


class IOPub:
    """Collects a rank's output in order and sends it to the notebook in batches."""

    def __init__(self, channel: Channel, stdout_pipe: int, stderr_pipe: int) -> None:
        self._channel = channel
        self._pipes = {"stdout": stdout_pipe, "stderr": stderr_pipe}
        for pipe in self._pipes.values():
            os.set_blocking(pipe, False)
        self._lock = threading.RLock()
        self._selector = selectors.PollSelector()
        for pipe in self._pipes.values():
            self._selector.register(pipe, selectors.EVENT_READ)
        self._parts: list[tuple[str, list[str]]] = []
        self._size = 0
        self._sent_at = 0.0
        self._libc = ctypes.CDLL(None)
        self._main_thread = threading.get_ident()
        self._sending = False
        self._interrupted = False

    def pipes(self) -> list[int]:
        return list(self._pipes.values())

    def write(self, stream: str, text: str) -> None:
        with self._lock:
            self.drain_pipes()
            self._add(stream, text)
            if self._size > _SEND_AT_BYTES or ("\n" in text and time.monotonic() - self._sent_at > _SEND_AFTER_SECONDS):
                self.flush()

    def drain_pipes(self) -> None:
        """Take what C++ or a child process has written to file descriptors 1 and 2."""
        with self._lock:
            if not self._selector.select(0):  # by far the most frequent case, and each print asks
                return
            for stream, pipe in self._pipes.items():
                try:
                    while data := os.read(pipe, 1 << 16):
                        self._add(stream, data.decode(errors="replace"))
                except BlockingIOError:
                    pass

    def flush(self) -> None:
        with self._lock:
            if self._parts:
                parts = [(stream, "".join(texts)) for stream, texts in self._parts]
                self._parts, self._size = [], 0
                self._send({"event": "output", "parts": parts})
            self._sent_at = time.monotonic()

    def finish(self) -> None:
        """Everything that the cell has written leaves for the notebook, C's own buffers included."""
        self._libc.fflush(None)
        self.drain_pipes()
        self.flush()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message behind all the text that came before it."""
        with self._lock:
            self.drain_pipes()
            self.flush()
            self._send(message, blob)

    def postpone_interrupt(self) -> bool:
        """Asked by the handler of SIGINT: half a message must not leave. True if KeyboardInterrupt comes later."""
        self._interrupted = self._sending
        return self._sending

    def _send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if threading.get_ident() != self._main_thread:
            self._channel.send(message, blob)
            return
        self._sending = True
        try:
            self._channel.send(message, blob)
        finally:
            self._sending = False
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _add(self, stream: str, text: str) -> None:
        if not self._parts or self._parts[-1][0] != stream:
            self._parts.append((stream, []))
        self._parts[-1][1].append(text)
        self._size += len(text)


class OutStream(io.TextIOBase):
    """sys.stdout or sys.stderr of a rank. In a process that the rank forks, plain writing to the pipe."""

    encoding = "utf-8"

    def __init__(self, iopub: IOPub, name: str, fd: int) -> None:
        self._iopub, self._name, self._fd, self._owner = iopub, name, fd, os.getpid()

    def write(self, text: str) -> int:
        if os.getpid() == self._owner:
            self._iopub.write(self._name, text)
        else:
            os.write(self._fd, text.encode())
        return len(text)

    def flush(self) -> None:
        if os.getpid() == self._owner:
            self._iopub.flush()

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True


class DisplayPublisher:
    """Rich output: values with a rich form, ``display()``, matplotlib's figures."""

    def __init__(self, iopub: IOPub) -> None:
        self._iopub = iopub
        self._formatter: Any = None
        self._display_ids = 0
        global publisher
        publisher = self
        sys.meta_path.insert(0, _AfterImport("IPython.core.display_functions", self._adopt_ipython))

    def value(self, value: Any) -> str | None:
        """The value of a cell's last line: shown at once if it is rich, else its text is returned."""
        if value is None:
            return None
        if is_rich(value):
            self.display(value)
            return None
        return plain(value)

    def display(self, *objects: Any, display_id: Any = None, raw: bool = False, **options: Any) -> None:
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


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with one module right after that module was imported for the first time."""

    def __init__(self, name: str, then: Any) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
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
