"""Situations that hold a tensor: those that learners predict, and those that their tool has to measure.

The functions in ``SITUATIONS`` stand in the notebook too, word for word. Nothing here knows their numbers: they are
measured in the interpreter and with the torch that the learner has. Drawn situations are made of parts, each of which
is known to hold the tensor so many times.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any


def nothing_returned(a):
    b = [a, a]
    b.append(a)


def three_times_in_a_list(a):
    return [a, a, a]


def one_list_held_twice(a):
    box = [a]
    return [box, box]


def two_closures(a):
    return lambda: a, lambda: -a


def cycle(a):
    box = [a]
    box.append(box)


def fail(x):
    raise ValueError("no luck")


def error_kept(a):
    try:
        fail(a)
    except ValueError as error:
        return error


def detached(a):
    return a.detach()


def saved_for_backward(a):
    a.requires_grad_()
    return (a * a).sum()


# What learners predict, and why each adds what it adds, without the number.
SITUATIONS: dict[Callable[[Any], Any], str] = {
    nothing_returned: "when a function returns, its names are gone, and the list with them",
    three_times_in_a_list: "each place in a list is a reference of its own",
    one_list_held_twice: "the list is held twice, but the list holds the tensor once",
    two_closures: "both functions share one cell, and the cell holds the tensor once",
    cycle: "the list holds itself, so its count never falls to 0: only the cycle collector frees it, and that has not "
    "run yet",
    error_kept: "an error holds its traceback, that holds the frames of two functions, and each frame has a name for "
    "the tensor",
    detached: "a detached tensor shares the memory, which has a count of its own, and not the tensor",
    saved_for_backward: "the graph saves the tensor, twice, but in C++, and all of C++ counts as one in Python",
}


# After these the tensor may stay. (An error holds frames, and they the frame that called them. What has a name there
# for the error is in a cycle with it, and the lab leaves it to the next exercises to see that.)
STAYS = (cycle, error_kept)


def added(situation: Callable[[Any], Any]) -> int:
    """How many references to a new tensor a situation adds, here and now."""
    import torch

    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a)
    after = sys.getrefcount(a)
    del kept
    return after - before


# --- drawn: lists of (kind, how often), one after the other


def _cyclic(a: Any, times: int) -> None:
    box: list[Any] = [a] * times
    box.append(box)


class _Holder:
    pass


def _attributes(a: Any, times: int) -> _Holder:
    holder = _Holder()
    for number in range(times):
        setattr(holder, f"name {number}", a)
    return holder


RETURNED: dict[str, Callable[[Any, int], Any]] = {
    "places in a list": lambda a, times: [a] * times,
    "values of a dict": lambda a, times: {number: [a] for number in range(times)},
    "default arguments": lambda a, times: [lambda x=a: x for _ in range(times)],
    "attributes": _attributes,
}
NOT_COUNTED: dict[str, Callable[[Any, int], Any]] = {
    "weak references": lambda a, times: [weakref.ref(a) for _ in range(times)],
    "deep copies": lambda a, times: [copy.deepcopy(a) for _ in range(times)],
    "detached tensors": lambda a, times: [a.detach() for _ in range(times)],
}
IN_C = "views"  # a view's tensor is held by C++, and all of C++ counts as one
ELSEWHERE, IN_A_CYCLE = "places elsewhere", "places in a cycle"
KINDS = (*RETURNED, *NOT_COUNTED, IN_C, ELSEWHERE, IN_A_CYCLE)
Parts = Sequence[tuple[str, int]]


def made_of(parts: Parts, elsewhere: list[Any]) -> Callable[[Any], Any]:
    """A situation of these parts. Some of them keep the tensor in ``elsewhere``, whatever becomes of the result."""

    def situation(a: Any) -> Any:
        kept = []
        for kind, times in parts:
            if kind == ELSEWHERE:
                elsewhere.append([a] * times)
            elif kind == IN_A_CYCLE:
                _cyclic(a, times)
            elif kind == IN_C:
                kept.append([a[0] for _ in range(times)])
            else:
                kept.append((RETURNED | NOT_COUNTED)[kind](a, times))
        return kept

    return situation


def stays(parts: Parts) -> bool:
    """Whether the tensor is still there when the situation's result is gone."""
    return any(kind in (ELSEWHERE, IN_A_CYCLE) for kind, _ in parts)


def counted(parts: Parts, *, dropped: bool = False, collected: bool = False) -> int:
    """How many references the parts add; also if the result is dropped, or the collector runs before the count."""
    found = sum(times for kind, times in parts if kind == ELSEWHERE)
    found += sum(times for kind, times in parts if kind == IN_A_CYCLE and not collected)
    if not dropped:
        found += sum(times for kind, times in parts if kind in RETURNED) + any(kind == IN_C for kind, _ in parts)
    return found
