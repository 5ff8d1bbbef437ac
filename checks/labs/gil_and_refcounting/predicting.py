"""Check of ``predictions``: how many references each function of the notebook adds, as measured in this Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of
from checks.engine.processes import run
from checks.labs.gil_and_refcounting.leaks import asleep

LAB = "gil_and_refcounting"
OFFICIAL = Reference(LAB, "predictions")
WHY = {
    "nothing_returned": "when a function returns, its names are gone, and the list with them",
    "three_times_in_a_list": "each place in a list is a reference of its own",
    "one_list_held_twice": "the list is held twice, but the list holds the tensor once",
    "two_closures": "both functions share one cell, and the cell holds the tensor once",
    "cycle": "the list holds itself, so its count never falls to 0: only the cycle collector frees it, and that has "
    "not run yet",
    "error_kept": "an error holds its traceback, that holds the frames of two functions, and each frame has a name for "
    "the tensor",
    "detached": "a detached tensor shares the memory, which has a count of its own, and not the tensor",
    "saved_for_backward": "the graph saves the tensor, twice, but in C++, and all of C++ counts as one in Python",
}


def truth() -> dict[str, int]:
    """The notebook's functions, measured here and now."""
    measure, *functions = Reference(LAB, " ".join(("added_references", *WHY))).functions()
    with asleep():
        for _ in range(2):  # what is imported or cached on first use does not count
            added = {name: measure(function) for name, function in zip(WHY, functions, strict=True)}
    return added


@exercise(OFFICIAL, title="Predict reference counts", difficulty=1, minutes=10)
def predict(predictions: Any) -> dict[str, Any]:
    """Judge ``predictions()``, which returns a dict from functions' names to references that they add."""
    run(_compare, predictions)
    return {"predictions": len(WHY), "measured in this Python": "the same"}


def _compare(predictions: Callable[[], Any]) -> None:
    predicted, right = predictions(), truth()
    fault = "predictions returns a dict from names of functions to numbers"
    refuse(not isinstance(predicted, Mapping), fault, measured=kind_of(predicted))
    for name in right:
        refuse(name not in predicted, f"{name} has no prediction")
    fault = "every number is one too large: only what the function adds counts, not the name that was there"
    refuse(all(predicted[name] == added + 1 for name, added in right.items()), fault)
    correct = sum(predicted[name] == added for name, added in right.items())
    for name, added in right.items():
        fault = f"{correct} of {len(right)} are right. {name} adds {added}, not {predicted[name]}: {WHY[name]}"
        refuse(predicted[name] != added, fault)
