"""``utils.launch``: one function on fresh ranks, and what each returned."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from utils.ranks.values import dumps_plain
from utils.ranks.views import Quiet, default_view
from utils.ranks.world import DEFAULT_TIMEOUT, World


def launch(
    function: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    nodes: int = 1,
    backend: str = "auto",
    timeout: float | None = DEFAULT_TIMEOUT,
    show_output: bool = True,
    **kwargs: Any,
) -> list[Any]:
    """Run ``function(*args, **kwargs)`` on every rank of a new world; return what each returned, rank 0 first.

    The function may be defined in a notebook cell. Like a cell on ranks, it finds ``rank``, ``world_size``,
    ``local_rank``, ``device``, ``torch`` and ``dist``; variables of the notebook by these names do not reach it. The
    world ends with the call.

    Args:
        ranks: world size.
        nodes: present the ranks as this many nodes.
        backend: "auto", "gloo" or "nccl".
        timeout: seconds; None or 0 for no limit.
        show_output: show what the ranks print (in rank order, when all are done).

    Raises:
        RankError: a rank raised or was killed; the one that failed first is first in ``failures``.
        RankTimeout: the time-out passed; ``report`` says which rank waited where, for whom.
        RanksInterrupted: the reader stopped it.
    """
    if not callable(function):
        raise TypeError(f"launch() takes a function and its arguments, not {type(function).__name__!r} first.")
    blob = dumps_plain((function, args, kwargs))
    view = default_view(live=False) if show_output else Quiet()
    with World(ranks, nodes, backend) as world:
        return world.call(blob, _sources(function), timeout, view)


def _sources(function: Callable[..., Any]) -> dict[str, str]:
    """The source of the notebook cell that defines the function, so that tracebacks show its lines."""
    code = getattr(function, "__code__", None)
    entry = linecache.cache.get(code.co_filename) if code is not None else None
    return {code.co_filename: "".join(entry[2])} if code is not None and entry and len(entry) == 4 else {}
