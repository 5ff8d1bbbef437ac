"""Where the output of ranks goes: into a notebook, a terminal, or nowhere.

A notebook shows the output live, and once the cell is done shows it again in rank order: that is what is stored. A
terminal shows each line as it comes.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future, wait
from typing import Any

from utils.ranks.transcript import Output, Transcript
from utils.ranks.words import label

LIVE_AFTER = 0.5  # seconds: most cells are done before that, and need no live view
LIVE_EVERY = 0.3
LIVE_LINES = 30  # of each rank, while the cell runs


class View:
    """How output is shown; this one shows nothing."""

    line: Any = None  # called with rank, stream and text of each finished line, if it is a function

    def update(self, transcript: Transcript) -> None:
        """There may be news; called often."""

    def finish(self, transcript: Transcript) -> None:
        """The cell is done."""


class Quiet(View):
    """Shows nothing."""


class Terminal(View):
    """Each line as it comes, with the rank that wrote it."""

    def line(self, rank: int, stream: str, text: str) -> None:
        print(f"{label([rank])}: {text}", file=getattr(sys, stream), flush=True)

    def finish(self, transcript: Transcript) -> None:
        for output in transcript.outputs():
            if output["output_type"] == "display_data":
                print(output["data"].get("text/plain", "(a picture)"))


class Notebook(View):
    """The ordered output at the end; while the cell runs, if ``live``, what there is so far."""

    def __init__(self, live: bool) -> None:
        self._live = live
        self._start = self._drawn_at = time.monotonic()
        self._drawn: str | None = None

    def update(self, transcript: Transcript) -> None:
        now = time.monotonic()
        if not self._live or now < self._start + LIVE_AFTER or now < self._drawn_at + LIVE_EVERY:
            return
        outputs = transcript.outputs(last_lines=LIVE_LINES)
        fingerprint = str(outputs)
        if outputs and fingerprint != self._drawn:
            self._clear(wait=True)
            show(outputs)
            sys.stdout.flush()
            sys.stderr.flush()
            self._drawn = fingerprint
        self._drawn_at = time.monotonic()

    def finish(self, transcript: Transcript) -> None:
        outputs = transcript.outputs()
        if self._drawn is not None:
            if self._drawn == str(outputs):
                return
            self._clear(wait=bool(outputs))
        show(outputs)

    def _clear(self, wait: bool) -> None:
        from IPython.display import clear_output

        clear_output(wait=wait)


class Held(View):
    """Keeps the output of a cell in the background until somebody asks for it."""

    def __init__(self) -> None:
        self._transcript = Transcript([])

    def update(self, transcript: Transcript) -> None:
        self._transcript = transcript

    finish = update

    def outputs(self) -> list[Output]:
        """What there is so far, in rank order."""
        while True:
            try:
                return self._transcript.outputs()
            except RuntimeError:
                continue  # it has grown meanwhile

    def show_until(self, future: Future[Any]) -> None:
        """Show what comes, live where that is wanted, until the future is done."""
        view = default_view(live=True)
        while not wait([future], LIVE_EVERY).done:
            view.update(self._transcript)
        if isinstance(view, Notebook):
            view.finish(self._transcript)
        else:
            show(self.outputs())


def live_wanted() -> bool:
    """RANKS_LIVE=0 turns the live view off, and so does running under pytest (nbval compares what is stored)."""
    asked = os.environ.get("RANKS_LIVE")
    return asked != "0" if asked is not None else "PYTEST_VERSION" not in os.environ


def in_notebook() -> bool:
    """Whether output goes to a notebook page, not a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def default_view(live: bool) -> View:
    """The view for where this process runs. ``live``: may the page be redrawn while the ranks work?"""
    return Notebook(live and live_wanted()) if in_notebook() else Terminal()


def show(outputs: list[Output]) -> None:
    """On the page, or in a terminal as text.

    (A flush waits for the kernel's thread that publishes. The kernel flushes at the end of each cell, so here only what
    another stream's text follows.)
    """
    from IPython.display import publish_display_data

    stream: Any = None
    for output in outputs:
        if output["output_type"] == "stream":
            former, stream = stream, getattr(sys, output["name"])
            if former not in (None, stream):
                former.flush()
            stream.write(output["text"])
        else:
            publish_display_data(output["data"], output["metadata"])


class Values(dict):
    """The value of the cell's last line on each rank, as text; shown like ``Out[…]``."""

    def __repr__(self) -> str:
        groups: dict[str, list[int]] = {}
        for rank, text in self.items():
            groups.setdefault(text, []).append(rank)
        blocks = []
        for text, ranks in groups.items():
            name = f"{label(ranks)}: "
            blocks.append(name + text.replace("\n", "\n" + " " * len(name)))
        return "\n".join(blocks)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))
