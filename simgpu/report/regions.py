"""Names for what GPUs do: ``simgpu.region``, and those that a program gives for torch's profiler."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simgpu.changes import around
from simgpu.cluster import current, exists

PIPELINES = "torch.distributed.pipelining"
CHUNKS = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}
"""What a pipeline's stage does with a micro-batch, in the letters of torch's schedules."""


@contextmanager
def region(name: str) -> Iterator[None]:
    """``with simgpu.region("F1"): …`` names the work inside; timelines show the name. Backward inside, too.

    So does ``torch.profiler.record_function("F1")``; and torch's pipelines name what they do: "PP:0F1" is the forward
    pass of micro-batch 1 in stage 0, with B for backward, or I and W for its halves. The innermost name counts.
    """
    lane = current().clock.lane(current().current_index())
    before, lane.region = lane.region, name
    try:
        yield
    finally:
        lane.region = before


@around
def entering(plain: Any, record: Any) -> Any:
    """``record_function``'s. What torch calls its own machinery would hide what the program says: not that."""
    module = sys._getframe(2).f_globals.get("__name__", "")
    if exists() and (module.startswith(PIPELINES) or not module.startswith("torch.")):
        inside = vars(record).setdefault("_regions", [])  # several, if it decorates a function that calls itself
        inside.append(region(record.name))
        inside[-1].__enter__()
    return plain(record)


@around
def leaving(plain: Any, record: Any, *error: Any) -> Any:
    """The same at its end."""
    if inside := vars(record).get("_regions"):
        inside.pop().__exit__(None, None, None)
    return plain(record, *error)


def of_chunks(letter: str) -> Callable[[Any], Callable[..., Any]]:
    """A stage's method that does something with one micro-batch. (Not all of torch's schedules name it.)"""

    @around
    def one_chunk(plain: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        if not exists():
            return plain(stage, *args, **kwargs)
        given = inspect.signature(plain).bind(stage, *args, **kwargs).arguments
        half = letter == "B" and not given.get("full_backward", True)
        with region(f"PP:{stage.stage_index}{'I' if half else letter}{list(given.values())[1]}"):
            return plain(stage, *args, **kwargs)

    return one_chunk
