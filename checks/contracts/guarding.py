"""Functions that a check hands to an answer, and behind which it cannot look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

from checks.contracts.events import not_the_answer


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


def facade(thing: Any, *names: str) -> SimpleNamespace:
    """Of an object of the check only these attributes; behind its methods, which are guarded, the check is at work."""

    def of_check(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with not_the_answer():
                return method(*given, **named)

        return guarded(call)

    found = {name: getattr(thing, name) for name in names}
    return SimpleNamespace(**{name: of_check(value) if callable(value) else value for name, value in found.items()})
