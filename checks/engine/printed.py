"""What answers print during a check: kept in the rank, and shown beside the verdict for the case that it speaks of."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

from utils.ranks.output import said_alike

LINES, LENGTH = 20, 200  # of what is kept in a rank: so many lines, so many characters of each
_OF_RAY = re.compile(r"(\x1b\[\d+m)?\((raylet|autoscaler|[^()]* pid=\d+)")  # it passes on what its processes say
_shown: ContextVar[list[str] | None] = ContextVar("shown", default=None)


class Printed(io.TextIOBase):
    """Stands in for stdout: keeps the first lines, and counts the others, so that a million of them cost nothing."""

    def __init__(self) -> None:
        self._lines: list[str] = [""]  # the last one has not ended yet
        self._more = 0

    def write(self, text: str) -> int:
        first, *others = text.split("\n")
        if len(self._lines) <= LINES:
            self._lines[-1] = (self._lines[-1] + first)[: LENGTH + 1]
        room = LINES + 1 - len(self._lines)
        self._lines += [line[: LENGTH + 1] for line in others[:room]]
        self._more += len(others[room:])
        return len(text)

    def take(self) -> str:
        """What has been printed since the last time."""
        lines = [
            line if len(line) <= LENGTH else f"{line[:LENGTH]}…" for line in self._lines if not _OF_RAY.match(line)
        ]
        text = "\n".join(lines[:LINES]).rstrip()
        if self._more:
            text += f"\n… ({self._more:,} more line{'s' if self._more > 1 else ''})"
        self._lines, self._more = [""], 0
        return text

    def leave(self, notes: str | Path, rank: int) -> None:
        """Before this process ends: what the check will not get in another way."""
        with contextlib.suppress(OSError):
            if text := self.take():
                Path(notes, f"printed.{rank}.new").write_text(text, encoding="utf-8")
                os.replace(Path(notes, f"printed.{rank}.new"), Path(notes, f"printed.{rank}"))


here = Printed()
"""Of this rank."""


def left(notes: str | Path, ranks: int) -> list[str]:
    """What each rank has left in this folder."""
    paths = [Path(notes, f"printed.{rank}") for rank in range(ranks)]
    return [path.read_text(encoding="utf-8") if path.exists() else "" for path in paths]


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """In the block a check judges; what is shown at its end is in the list, a text for each rank."""
    texts: list[str] = []
    token = _shown.set(texts)
    try:
        yield texts
    finally:
        _shown.reset(token)


def show(texts: Sequence[str]) -> None:
    """Show what the ranks have printed; in place of what was to be shown so far."""
    if (shown := _shown.get()) is not None and any(texts):
        shown[:] = texts


def told(texts: Sequence[str]) -> str:
    """As the reader sees it: ranks that have printed the same are named together."""
    parts, said = [], said_alike(enumerate(texts))
    for text, ranks in said:
        lines = text.split("\n")
        room = max(3, LINES // len(said) + 1)  # (with the line that counts the others)
        if len(lines) > room:
            lines[room:] = [f"… ({len(lines) - room} more)"]
        who = f"printed on {ranks}:" if len(texts) > 1 else "printed:"
        parts.append("\n".join([who, *(f"    {line}" for line in lines)]))
    return "\n".join(parts)
