"""Situations that hold a tensor, and how many references each of them adds: what learners predict and measure.

The functions in ``SITUATIONS`` stand in the notebook too, word for word. Nothing here knows the numbers: they are
measured in the interpreter and with the torch that the learner has.
"""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any


def another_name(a):
    b = a
    return b


def nothing_returned(a):
    b = [a, a]
    b.append(a)


def three_times_in_a_list(a):
    return [a, a, a]


def one_list_held_twice(a):
    box = [a]
    return [box, box]


def key_and_value(a):
    return {a: a}


def deep_copy(a):
    return copy.deepcopy([a])


def weak_reference(a):
    return weakref.ref(a)


def default_argument(a):
    return lambda x=a: x


def two_closures(a):
    return lambda: a, lambda: -a


def cycle(a):
    box = [a]
    box.append(box)


def cycle_collected(a):
    cycle(a)
    gc.collect()


def fail(x):
    raise ValueError("no luck")


def error_kept(a):
    try:
        fail(a)
    except ValueError as error:
        return error


def text_of_the_error(a):
    try:
        fail(a)
    except ValueError as error:
        return str(error)


def view(a):
    return a[0]


def detached(a):
    return a.detach()


def saved_for_backward(a):
    a.requires_grad_()
    return (a * a).sum()


SITUATIONS: tuple[Callable[[Any], Any], ...] = (
    *(another_name, nothing_returned, three_times_in_a_list, one_list_held_twice, key_and_value, deep_copy),
    *(weak_reference, default_argument, two_closures, cycle, cycle_collected, error_kept, text_of_the_error),
    *(view, detached, saved_for_backward),
)

# Why each adds what it adds, without the number.
WHY: dict[str, str] = {
    "another_name": "a second name is a second reference",
    "nothing_returned": "when a function returns, its names are gone, and the list with them",
    "three_times_in_a_list": "each place in a list is a reference of its own",
    "one_list_held_twice": "the list is held twice, but the list holds the tensor once",
    "key_and_value": "a key is a reference, and so is a value",
    "deep_copy": "a deep copy holds copies, not the tensor",
    "weak_reference": "a weak reference does not count: that is what it is for",
    "default_argument": "a function holds its default arguments",
    "two_closures": "both functions share one cell, and the cell holds the tensor once",
    "cycle": "the list holds itself, so its count never falls to 0: only the cycle collector frees it, and that has "
    "not run yet",
    "cycle_collected": "the collector has found the cycle and freed it",
    "error_kept": "an error holds its traceback, that holds the frames of two functions, and each frame has a name "
    "for the tensor",
    "text_of_the_error": "a text holds nothing; the error ends with its except block",
    "view": "a view remembers the tensor that it is a view of",
    "detached": "a detached tensor shares the memory, which has a count of its own, and not the tensor",
    "saved_for_backward": "the graph saves the tensor, twice, but in C++, and all of C++ counts as one in Python",
}

_elsewhere: list[Any] = []


def kept_elsewhere(a):
    _elsewhere.append(a)


def attribute(a):
    a.me = a


def seventeen_times(a):
    return (a,) * 17


HIDDEN = (kept_elsewhere, attribute, seventeen_times)  # in no notebook: for the measuring tool only


def added(situation: Callable[[Any], Any], way: str = "right") -> int:
    """How many references to a new tensor a situation adds, or what one gets who measures it in a wrong ``way``."""
    import torch

    a = torch.zeros(3)
    if way == "holders":
        before = len(gc.get_referrers(a))
        kept = situation(a)
        return len(gc.get_referrers(a)) - before
    if way == "warmed up":
        situation(a)
    before = sys.getrefcount(a)
    kept = situation(a)
    if way == "dropped":
        kept = None  # noqa: F841
    elif way == "twice":
        again = situation(a)  # noqa: F841
    elif way == "collected":
        gc.collect()
    return sys.getrefcount(a) - {"absolute": 0, "another": sys.getrefcount(torch.zeros(3))}.get(way, before)


WAYS = ("right", "dropped", "absolute", "another", "holders", "warmed up", "twice", "collected")


def references(added_references: Any = None) -> dict[str, Any]:
    """What really happens in each situation, with the collector off, and what a learner's tool says.

    Returns:
        ``truth``: for each way to measure a dict of situations and references; ``tool``: the learner's dict, or {}.
    """
    every = (*SITUATIONS, *HIDDEN)
    gc.disable()
    try:
        for situation in every:
            added(situation)  # what is imported or cached on first use should not count
        truth = {way: {situation.__name__: added(situation, way) for situation in every} for way in WAYS}
        gc.collect()
        tool = {situation.__name__: added_references(situation) for situation in every} if added_references else {}
    finally:
        gc.enable()
    return {"truth": truth, "tool": tool}
