"""The exceptions of ``utils.ranks``. IPython shows their report in place of a traceback through this package."""

from __future__ import annotations

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


class RankError(RuntimeError):
    """A cell or function failed on some ranks. ``failures``: the rank that failed first is first."""

    def __init__(self, sentence: str, failures: Sequence[RankFailure] = (), report: str = "") -> None:
        super().__init__(sentence)
        self.failures = list(failures)
        self.report = report

    def _render_traceback_(self) -> list[str]:
        return _rendered(self)


class RankTimeout(RankError):
    """A cell or function did not end within its time-out; ``report`` is the table of who waits where for whom."""


class RanksInterrupted(KeyboardInterrupt):
    """The reader stopped a cell; ``report`` is the table of who waits where for whom."""

    def __init__(self, sentence: str, report: str) -> None:
        super().__init__(sentence)
        self.report = report

    def _render_traceback_(self) -> list[str]:
        return _rendered(self)


def _rendered(error: RankError | RanksInterrupted) -> list[str]:
    return [*error.report.splitlines(), "", f"{type(error).__name__}: {error}"]
