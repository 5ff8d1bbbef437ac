"""What simulated GPUs replace in torch (and in Python) until ``simgpu.uninstall``, which takes everything back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

_undo: list[Callable[[], Any]] = []
_MISSING = object()


def take_back() -> None:
    """Everything is as before, the latest change first."""
    while _undo:
        _undo.pop()()


def on_uninstall(undo: Callable[[], Any]) -> None:
    """Call this, too, to take everything back."""
    _undo.append(undo)


def put(owner: Any, name: str, value: Any) -> None:
    """Set an attribute."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    _undo.append(lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before))


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of torch with what ``make`` makes of it."""
    put(owner, name, make(getattr(owner, name, None)))


def replace_all(places: Sequence[tuple[Any, str]], make: Callable[[Any], Any]) -> None:
    """The same for one function in several places."""
    made = make(getattr(*places[0]))
    for owner, name in places:
        put(owner, name, made)


def around(function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """A ``make`` for ``replace``: what it makes calls ``function`` with torch's own one, and then the arguments."""

    def make(plain: Any) -> Callable[..., Any]:
        @functools.wraps(plain)
        def changed(*args: Any, **kwargs: Any) -> Any:
            return function(plain, *args, **kwargs)

        return changed

    return functools.update_wrapper(make, function)
