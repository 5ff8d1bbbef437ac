"""The exceptions of ``utils.ranks``. IPython shows their report in place of a traceback through this package."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass


class BadRequest(ValueError):
    """What was asked for makes no sense, or cannot be had here; the text is a sentence that says what to do instead."""


@dataclass
class RankFailure:
    """One rank's failure.

    Attributes: rank; ename and message of the exception (or the signal that killed it); its traceback as text; line
    and code of the reader's own code that it came from, where known.
    """

    rank: int
    ename: str
    message: str
    traceback: str
    line: int | None
    code: str | None


class _Reported:
    """An exception with a report that tells more than its traceback, which leads through this package."""

    report: str = ""

    def report_lines(self) -> list[str]:
        """The report and the sentence; IPython shows them in place of a traceback."""
        return [*self.report.splitlines(), "", f"{type(self).__name__}: {self}"]

    _render_traceback_ = report_lines


class RankError(_Reported, RuntimeError):
    """A cell or function failed on some ranks. ``failures``: the rank that failed first is first."""

    def __init__(self, sentence: str, failures: Sequence[RankFailure] = (), report: str = "") -> None:
        super().__init__(sentence)
        self.failures = list(failures)
        self.report = report


class RankTimeout(RankError):
    """A cell or function did not end within its time-out; ``report`` is the table of who waits where for whom."""


class RanksInterrupted(_Reported, KeyboardInterrupt):
    """The reader stopped a cell; ``report`` is the table of who waits where for whom."""

    def __init__(self, sentence: str, report: str) -> None:
        super().__init__(sentence)
        self.report = report


class CellSyntaxError(Exception):
    """A cell that is not Python. (No SyntaxError itself: IPython would show our insides with it.)"""

    def __init__(self, error: SyntaxError) -> None:
        super().__init__(f"{error.msg} (line {error.lineno})")
        self._text = "".join(traceback.format_exception_only(error))

    def _render_traceback_(self) -> list[str]:
        return self._text.splitlines()
