"""Tracebacks of a cell as its reader expects them: with the cell's lines, and without those of this package."""

from __future__ import annotations

import linecache
import traceback

from utils.ranks import locate


def traceback_text(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of this package."""
    whole: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    one = whole
    while one is not None:
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not frame.filename.startswith(locate.HERE)]
        )
        one = one.__cause__ or one.__context__
    return "".join(whole.format())


def remember_source(file: str, source: str) -> None:
    """Let tracebacks show the lines of code that is in no file."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
