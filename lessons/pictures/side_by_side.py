"""Two programs side by side: what is the same in both, and what differs (HTML: its text is its own alternative)."""

from __future__ import annotations

import difflib
import functools
import html
from dataclasses import dataclass

from utils.draw import palette

SAME, DIFFERENT, ONLY_LEFT, ONLY_RIGHT = "", "≠", "−", "+"
_COLOUR = {SAME: palette.PANEL, DIFFERENT: palette.PROCESS, ONLY_LEFT: palette.DEVICE, ONLY_RIGHT: palette.DEVICE}
_CODE = (
    "font-family:monospace;font-size:11px;line-height:1.35;white-space:pre-wrap;"
    "text-align:left;vertical-align:top;padding:1px 6px;"
)

ALIKE = 0.6
"""Two lines stand beside each other if at least so much of them is the same (the ratio of difflib)."""

Row = tuple[str, str, str]
"""Sign, line on the left, line on the right."""


@dataclass(frozen=True, repr=False)
class SideBySide:
    """A diff that shows itself: a table in a notebook, one sentence in a terminal.

    Signs say what colours say: ≠ a line that differs, − only on the left, + only on the right.
    """

    names: tuple[str, str]
    rows: tuple[Row, ...]

    @property
    def summary(self) -> str:
        """How much is the same."""
        counts = {sign: sum(row[0] == sign for row in self.rows) for sign in _COLOUR}
        left, right = self.names
        return (
            f"{left} and {right}: {counts[SAME]} lines are the same, {counts[DIFFERENT]} differ, "
            f"{counts[ONLY_LEFT]} are only in {left}, {counts[ONLY_RIGHT]} only in {right}"
        )

    def __repr__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th style="text-align:left;color:{palette.INK};">{html.escape(name)}</th>' for name in ("", *self.names)
        )
        body = "".join(_html_of(row) for row in self.rows)
        return (
            f'<table style="width:100%;table-layout:fixed;background:{palette.PANEL};color:{palette.INK};">'
            f'<caption style="text-align:left;color:{palette.MUTED};">{html.escape(self.summary)}.</caption>'
            f'<colgroup><col style="width:2.2em"><col><col></colgroup><tr>{head}</tr>{body}</table>'
        )


def side_by_side(left: str, right: str, names: tuple[str, str]) -> SideBySide:
    """Compare two programs line by line; docstrings at the top, and empty lines, are left out.

    Args:
        left, right: the sources.
        names: what to call them.
    """
    one, other = _lines(left), _lines(right)
    rows: list[Row] = []
    for kind, begin, end, to_begin, to_end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            rows += [(SAME, line, line) for line in one[begin:end]]
        else:
            rows += _aligned(one[begin:end], other[to_begin:to_end])
    return SideBySide(names, tuple(rows))


def _aligned(left: list[str], right: list[str]) -> list[Row]:
    """Rows for two pieces without a common line: the two lines most alike stand beside each other, then the rest."""
    pairs = ((_alike(one, other), i, j) for i, one in enumerate(left) for j, other in enumerate(right))
    how_alike, i, j = max(pairs, default=(0.0, 0, 0), key=lambda pair: pair[0])
    if how_alike < ALIKE:
        return [(ONLY_LEFT, line, "") for line in left] + [(ONLY_RIGHT, "", line) for line in right]
    here = (DIFFERENT, left[i], right[j])
    return [*_aligned(left[:i], right[:j]), here, *_aligned(left[i + 1 :], right[j + 1 :])]


@functools.cache
def _alike(one: str, other: str) -> float:
    """From 0 to 1: how much of the code of two lines is the same. Comments do not count."""
    codes = (line.split("#")[0].strip() for line in (one, other))
    return difflib.SequenceMatcher(None, *codes, autojunk=False).ratio()


def _lines(source: str) -> list[str]:
    if source.startswith('"""'):
        source = source.split('"""', 2)[2]
    return [line for line in source.splitlines() if line.strip()]


def _html_of(row: Row) -> str:
    sign, *texts = row
    colour = _COLOUR[sign]
    cells = "".join(
        f'<td bgcolor="{colour if text else palette.PANEL}" style="{_CODE}">{html.escape(text)}</td>' for text in texts
    )
    return (
        f'<tr><td bgcolor="{palette.PANEL}" style="{_CODE}text-align:center;font-weight:bold;">{sign}</td>{cells}</tr>'
    )
