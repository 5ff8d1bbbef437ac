"""What the ranks of one cell printed and showed: kept within bounds, put in rank order, folded where identical."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from utils.ranks.words import label

KEEP_FIRST = 200  # lines and figures of one rank in one cell; beyond these and the last ones, a note
KEEP_LAST = 200
LONGEST_LINE = 10_000  # characters

Output = dict[str, Any]  # as in a notebook file: output_type stream or display_data


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
        return _joined(outputs)


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
