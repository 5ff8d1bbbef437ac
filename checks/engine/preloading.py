"""What each rank of a check would import, for itself, and what is better imported once, before they are forked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from checks.engine.answers import Answer
from course.size import PREFIXES

_ALWAYS = (
    "cloudpickle",
    "numpy.random",
    "torch.utils._device",
    "checks.engine.inside",
    "checks.engine.standstill",
    "checks.engine.wire",
)


def modules_of(values: Sequence[Any]) -> tuple[str, ...]:
    """Modules that ranks need which get these values: those of the check's own functions among them, and a few more."""
    return (*_ALWAYS, *dict.fromkeys(_modules(values)))


def _modules(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _modules(value)
        elif not isinstance(value, Answer) and callable(value):
            module = getattr(value, "__module__", None) or ""
            if module.startswith(PREFIXES):
                yield module
                yield from getattr(sys.modules[module], "PRELOAD", ())
