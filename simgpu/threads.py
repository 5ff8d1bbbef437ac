"""Tasks of a ``ThreadPoolExecutor``, whose threads live on when a task is done.

What the main thread launches after ``future.result()`` comes after the task, so the simulation must know when it ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from simgpu.cluster import current, exists


def submitting(original: Callable[..., Any]) -> Callable[..., Any]:
    """``ThreadPoolExecutor.submit``. A task's number tells it from others, not the thread that happens to take it."""
    numbers = itertools.count()

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        number = next(numbers)

        def task() -> Any:
            if not exists():
                return fn(*args, **kwargs)
            with current().clock.task(number):
                return fn(*args, **kwargs)

        return original(self, task)

    return submit
