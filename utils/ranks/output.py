"""The output of ranks: kept within bounds, put in rank order, shown in a notebook, a terminal, or nowhere.

A notebook shows the output live, and once the cell is done shows it again in rank order: that is what is stored. A
terminal shows each line as it comes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from html import escape
from typing import Any

KEEP_FIRST = 200  # lines and figures of one rank in one cell; beyond these and the last ones, a note
KEEP_LAST = 200
LONGEST_LINE = 10_000  # characters

Output = dict[str, Any]  # as in a notebook file: output_type stream or display_data

LIVE_AFTER = 0.5  # seconds: most cells are done before that, and need no live view
LIVE_EVERY = 0.3
LIVE_LINES = 30  # of each rank, while the cell runs

COLUMNS = ("rank", "node", "local rank", "pid", "device", "memory of its own")


# ---------------------------------------------------------------------- words
def label(ranks: Iterable[int]) -> str:
    """``rank 0``, ``ranks 0, 2``, ``ranks 0–3``."""
    ranks = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)


def said_alike(said: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    """What ranks have said, each text once and with all ranks that said it: ``[("boom", "ranks 0, 1"), …]``."""
    by_text: dict[str, list[int]] = {}
    for rank, text in said:
        if text:
            by_text.setdefault(text, []).append(rank)
    return [(text, label(ranks)) for text, ranks in by_text.items()]


def text_table(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    """The lines of a table, its columns as wide as they need; the cells of a column end together if ``right``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


# ---------------------------------------------------------------------- what ranks have printed and shown
@dataclass
class Line:
    stream: str
    text: str


@dataclass
class Shown:
    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None = None


@dataclass
class RankTranscript:
    """One rank's output, in the order in which it left the rank."""

    on_line: Callable[[str, str], None] | None = None  # called with stream and text of each finished line
    first: list[Line | Shown] = field(default_factory=list)
    last: deque[Line | Shown] = field(default_factory=lambda: deque(maxlen=KEEP_LAST))
    left_out: int = 0
    _open: dict[str, str] = field(default_factory=dict)

    def text(self, stream: str, text: str) -> None:
        *whole, rest = (self._open.pop(stream, "") + text).split("\n")
        if len(self.first) == KEEP_FIRST and len(whole) > KEEP_LAST and self.on_line is None:
            # None of these would stay: a rank that prints a million lines must not keep the notebook busy.
            self.left_out += len(self.last) + len(whole) - KEEP_LAST
            self.last.clear()
            whole = whole[-KEEP_LAST:]
        for line in whole:
            self._add(Line(stream, _shorten(_after_return(line))))
        if rest:
            self._open[stream] = _shorten(_after_return(rest))

    def show(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool) -> None:
        if update:
            for entry in [*self.first, *self.last]:
                if isinstance(entry, Shown) and display_id is not None and entry.display_id == display_id:
                    entry.data, entry.metadata = data, metadata
            return
        self._close_lines()
        self._add(Shown(data, metadata, display_id))

    def clear(self) -> None:
        self.first, self.left_out = [], 0
        self.last.clear()
        self._open.clear()

    def entries(self) -> Iterator[Line | Shown]:
        yield from self.first
        if self.left_out:
            yield Line("stdout", f"… {self.left_out:,} lines left out: they were too many to show …")
        yield from self.last
        for stream, text in self._open.items():
            yield Line(stream, text)

    def finish(self) -> None:
        self._close_lines()

    def key(self) -> str:
        """Equal for ranks whose output is identical."""
        return json.dumps(
            [[e.stream, e.text] if isinstance(e, Line) else [e.data, e.metadata] for e in self.entries()],
            default=str,
        )

    def _close_lines(self) -> None:
        for stream in list(self._open):
            self._add(Line(stream, self._open.pop(stream)))

    def _add(self, entry: Line | Shown) -> None:
        if isinstance(entry, Line) and self.on_line is not None:
            self.on_line(entry.stream, entry.text)
        if len(self.first) < KEEP_FIRST:
            self.first.append(entry)
            return
        if len(self.last) == KEEP_LAST:
            self.left_out += 1
        self.last.append(entry)


class Transcript:
    """The output of all ranks of one cell."""

    def __init__(self, ranks: Iterable[int], on_line: Callable[[int, str, str], None] | None = None) -> None:
        self.by_rank: dict[int, RankTranscript] = {}
        for rank in ranks:
            hook = (lambda stream, text, rank=rank: on_line(rank, stream, text)) if on_line else None
            self.by_rank[rank] = RankTranscript(hook)
        self.overwritten: dict[int, tuple[str, ...]] = {}  # names of ours that had another value when the cell ended

    def finish(self) -> None:
        for one in self.by_rank.values():
            one.finish()

    def outputs(self, last_lines: int | None = None) -> list[Output]:
        """Everything as notebook outputs, in rank order; identical output of several ranks once.

        Args:
            last_lines: keep only this many lines of each rank, and fold nothing: for a view while the cell runs,
                in which lines should not jump whenever ranks happen to be at the same point.
        """
        groups: dict[str, list[int]] = {}
        for rank, one in sorted(self.by_rank.items()):
            groups.setdefault(one.key() if last_lines is None else str(rank), []).append(rank)
        outputs: list[Output] = []
        for ranks in groups.values():
            name = label(ranks)
            entries = list(self.by_rank[ranks[0]].entries())
            for entry in entries if last_lines is None else entries[-last_lines:]:
                if isinstance(entry, Line):
                    _append_text(outputs, entry.stream, f"{name}: {entry.text}".rstrip() + "\n")
                else:
                    _append_text(outputs, "stdout", f"{name}:\n")
                    outputs.append({"output_type": "display_data", "data": entry.data, "metadata": entry.metadata})
        for note in self.notes():
            _append_text(outputs, "stderr", f"{note}\n")
        return _joined(outputs)

    def notes(self) -> list[str]:
        """What the reader should know of the cell, one line each."""
        names = dict.fromkeys(name for _, names in sorted(self.overwritten.items()) for name in names)
        if not names:
            return []
        these = " and ".join(f"`{name}`" for name in names)
        return [
            f"This cell has given {these} another meaning. The next cell on ranks has the usual one again: use other "
            "names for your own."
        ]


def _append_text(outputs: list[Output], stream: str, text: str) -> None:
    """Add to a list of pieces, which ``_joined`` makes one text: millions of characters are no rarity here."""
    if outputs and outputs[-1].get("name") == stream:
        outputs[-1]["text"].append(text)
    else:
        outputs.append({"output_type": "stream", "name": stream, "text": [text]})


def _joined(outputs: list[Output]) -> list[Output]:
    for output in outputs:
        if output["output_type"] == "stream":
            output["text"] = "".join(output["text"])
    return outputs


def _after_return(line: str) -> str:
    # A progress bar rewrites its line after a carriage return: what is seen last is what stays.
    if "\r" not in line:
        return line
    return next((part for part in reversed(line.split("\r")) if part), "")


def _shorten(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} … {len(line) - 2 * half:,} characters left out … {line[-half:]}"


# ---------------------------------------------------------------------- where it goes
class View:
    """How output is shown; this one shows nothing."""

    line: Any = None  # called with rank, stream and text of each finished line, if it is a function

    def update(self, transcript: Transcript) -> None:
        """There may be news; called often."""

    def finish(self, transcript: Transcript) -> None:
        """The cell is done."""

    @property
    def can_ask(self) -> bool:
        """Whether there is a reader who can answer questions."""
        return False

    def ask(self, rank: int, prompt: str, others: str, transcript: Transcript) -> str:
        """The reader's answer to a rank's question. ``others``: what the other ranks do meanwhile."""
        raise NotImplementedError


class Terminal(View):
    """Each line as it comes, with the rank that wrote it."""

    def line(self, rank: int, stream: str, text: str) -> None:
        print(f"{label([rank])}: {text}", file=getattr(sys, stream), flush=True)

    def finish(self, transcript: Transcript) -> None:
        for output in transcript.outputs():
            if output["output_type"] == "display_data":
                print(output["data"].get("text/plain", "(a picture)"))
        for note in transcript.notes():
            print(note, file=sys.stderr)

    can_ask = True

    def ask(self, rank: int, prompt: str, others: str, transcript: Transcript) -> str:
        if others:
            print(others)
        return input(_question(rank, prompt))


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
        if outputs and str(outputs) != self._drawn:
            self._draw(outputs)
        self._drawn_at = time.monotonic()

    def finish(self, transcript: Transcript) -> None:
        outputs = transcript.outputs()
        if self._drawn is not None:
            if self._drawn == str(outputs):
                return
            self._clear(wait=bool(outputs))
        show(outputs)

    @property
    def can_ask(self) -> bool:
        return bool(getattr(sys.modules["IPython"].get_ipython().kernel, "_allow_stdin", True))

    def ask(self, rank: int, prompt: str, others: str, transcript: Transcript) -> str:
        self._draw(transcript.outputs(last_lines=LIVE_LINES))
        if others:
            print(others, flush=True)
        answer = input(_question(rank, prompt))
        transcript.by_rank[rank].text("stdout", f"{prompt}{answer}\n")  # (the next drawing clears the question away)
        return answer

    def _draw(self, outputs: list[Output]) -> None:
        self._clear(wait=True)
        show(outputs)
        sys.stdout.flush()
        sys.stderr.flush()
        self._drawn = str(outputs)

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


def _question(rank: int, prompt: str) -> str:
    return f"{label([rank])} asks: {prompt}"


def live_wanted() -> bool:
    """RANKS_LIVE=0 turns the live view off, for whoever compares what a notebook shows with what is stored."""
    return os.environ.get("RANKS_LIVE") != "0"


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


@dataclass
class Status:
    """The ranks of a world: one row each, and a sentence above them."""

    sentence: str
    rows: list[tuple[str, ...]]

    def __repr__(self) -> str:
        if not self.rows:
            return self.sentence
        return "\n".join([self.sentence, *text_table([COLUMNS, *self.rows], right=True)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
        return f"<p>{escape(self.sentence)}</p>{table}"


def own_memory(pid: int) -> str:
    """Memory that only this process uses: what it shares with its siblings (torch's code, say) is not counted."""
    import psutil  # (here, for ranks and launchers need only the words)

    try:
        process = psutil.Process(pid)
        try:
            used = process.memory_full_info().uss
        except (psutil.AccessDenied, AttributeError):
            used = process.memory_info().rss
    except psutil.NoSuchProcess:
        return "gone"
    return f"{used / 2**20:.0f} MB"
