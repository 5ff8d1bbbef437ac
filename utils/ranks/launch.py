"""``utils.launch``: one function on fresh ranks, and what each returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from utils.ranks.starters import default_method, starter
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
        TypeError: no function, or an option that is a parameter of the function too.
        RankError: a rank raised or was killed; the one that failed first is first in ``failures``.
        RankTimeout: the time-out passed; ``report`` says which rank waited where, for whom.
        RanksInterrupted: the reader stopped it.
    """
    given = {"ranks": ranks != 4, "nodes": nodes != 1, "backend": backend != "auto"}
    given |= {"timeout": timeout != DEFAULT_TIMEOUT, "show_output": not show_output}
    for name in _parameters(function) & {name for name, is_given in given.items() if is_given}:
        raise TypeError(
            f"{name}= is an option of launch() and a parameter of the function too. For the function, write "
            f"functools.partial(function, {name}=…); launch's own can then stay beside it."
        )
    view = default_view(live=False) if show_output else Quiet()
    with World(ranks, nodes, backend, timeout=timeout) as world:
        return world.run_last(function, args, kwargs, view)


def preload(*modules: str) -> None:
    """Import these modules once, so that ranks that are started later need not, each for itself."""
    starter(default_method()).preload(*modules)


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Names of the parameters that a caller may still give by name."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
    return names - set(getattr(function, "keywords", ()))  # those that functools.partial has given
