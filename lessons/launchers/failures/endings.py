"""How a program ended on its ranks: as a table, with what ranks said, and with their collectives side by side."""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass

from utils.ranks.output import said_alike, text_table

_CODE_WIDTH, _WORDS_WIDTH = 44, 100


@dataclass(frozen=True)
class Ending:
    """How the program ended on one rank.

    Attributes:
        rank: which one.
        how: "finished", the name of an exception, "killed by SIGKILL", or "still running" when the time was over.
        line: number of the program's line that the exception came from; None if there was none.
        code: that line.
        words: the first line of the exception's message, without ports and places in torch's source.
        output: what the program printed.
        log: what torch and the program wrote to stderr, a line each, without stack frames, times, ports.
        collectives: with ``history``, what torch's flight recorder holds: each collective that the program has begun on
            this rank, as its name and the program's line. Empty if the rank was killed.
    """

    rank: int
    how: str
    line: int | None = None
    code: str = ""
    words: str = ""
    output: str = ""
    log: tuple[str, ...] = ()
    collectives: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Endings:
    """How the program ended on all ranks; shows itself as a table, and then what ranks said and printed."""

    ranks: tuple[Ending, ...]

    def __getitem__(self, rank: int) -> Ending:
        return self.ranks[rank]

    def __repr__(self) -> str:
        rows = [("rank", "how it ended", "where")]
        for end in self.ranks:
            where = f"line {end.line}: {textwrap.shorten(end.code, _CODE_WIDTH, placeholder=' …')}" if end.line else ""
            rows.append((str(end.rank), end.how, where))
        lines = text_table(rows)
        for words, who in said_alike((end.rank, end.words) for end in self.ranks):
            lines += textwrap.wrap(f"{who}: {words}", _WORDS_WIDTH, subsequent_indent="    ")
        for output, who in said_alike((end.rank, end.output.rstrip()) for end in self.ranks):
            lines += [f"{who} printed: {line}" for line in output.splitlines()]
        return "\n".join(lines)

    def flight_recorder(self) -> str:
        """The collectives of all ranks side by side, in the order in which each rank has begun them."""
        begun = [[f"line {line}: {what}" for what, line in end.collectives] for end in self.ranks]
        rows = list(itertools.zip_longest(*begun, fillvalue="–"))
        names, *lines = text_table([[f"rank {end.rank}" for end in self.ranks], *rows])
        differ = ["   ← they differ" if len(set(row)) > 1 else "" for row in rows]
        numbered = enumerate(zip(lines, differ, strict=True), start=1)
        return "\n".join([f"    {names}", *(f"{number:>2}  {line}{mark}" for number, (line, mark) in numbered)])
