"""Functions that a check hands to an answer, and behind which it cannot look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function inside a generator: what it knows is reached by nobody but who looks at frames (see events)."""
    next(calls := _calls(function))
    one_at_a_time = threading.RLock()

    def call(*given: Any, **named: Any) -> Any:
        with one_at_a_time:
            found, error = calls.send((given, named))
        if error is not None:
            raise error
        return found

    return call


def _calls(function: Callable[..., Any]) -> Generator[Any, Any, None]:
    found: Any = None
    while True:
        given, named = yield found
        try:
            found = function(*given, **named), None
        except BaseException as error:
            found = None, error
