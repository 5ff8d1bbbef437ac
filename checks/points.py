"""Points: what an exercise is worth, and what an answer that is not right has earned of it.

An exercise that has parts declares them, ``@exercise(…, parts={"sampler": 1, "accuracy": 2})``, and its check says
``passed("sampler")`` when it has seen that part to be right, before it looks at the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_seen: ContextVar[list[str] | None] = ContextVar("parts that have passed", default=None)


def passed(part: str) -> None:
    """In a check: this part of the answer is right, whatever comes next."""
    if (seen := _seen.get()) is not None and part not in seen:
        seen.append(part)


@contextlib.contextmanager
def passed_parts() -> Iterator[list[str]]:
    """The parts for which the checks that run inside call ``passed``."""
    seen: list[str] = []
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def counted(points: float) -> str:
    """ "1 point", "2 points"."""
    return f"{points:g} point{'' if points == 1 else 's'}"
