"""Check of ``added_references``: a tool that counts the references which a situation adds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from checks.engine import Reference, refuse
from checks.engine.plain import kind_of, number
from checks.labs.gil_and_refcounting.leaks import asleep
from checks.labs.gil_and_refcounting.predicting import LAB, WHY

CALL = "    kept = situation(a)\n"
OFFICIAL = Reference(LAB, "added_references", {
    "what the situation returns must stay alive until you have counted: give it a name":
        {CALL: "    situation(a)\n", "    del kept\n": ""},
    "these are all references to the tensor: count before and after, and take the difference":
        {"after - before": "after"},
    "the count before is that of the same tensor, taken in the same way, or every number is off":
        {"after - before": "after - sys.getrefcount(torch.zeros(3))"},
    "every situation seems to add nothing: count once before the call and once after it, the tensor that it was given":
        {CALL: "    kept = situation(a.clone())\n"},
    "the cycle collector takes away what was to be counted: leave it alone until the count":
        {CALL: CALL + "    __import__('gc').collect()\n"},
})  # fmt: skip
ELSEWHERE, IN_A_CYCLE = "in a list elsewhere", "in a cycle"
MADE_UP = [{"dict": 4}, {"views": 3}, {"views": 2, "list": 2}, {"weak references": 5}, {"default arguments": 3},
           {"copies": 3, "dict": 2}, {"list": 30_000}, {ELSEWHERE: 700}, {IN_A_CYCLE: 6}, {}]  # fmt: skip
CASES = [*({"situation": name} for name in WHY), *({"situation": "made up", "holds": one} for one in MADE_UP)]


def made_of(parts: dict[str, int], elsewhere: list[Any]) -> Callable[[Any], Any]:
    """A situation in which a tensor is held so many times in each way."""
    ways: dict[str, Callable[[Any, int], Any]] = {
        "list": lambda a, times: [a] * times,
        "dict": lambda a, times: {number: [a] for number in range(times)},
        "default arguments": lambda a, times: [lambda x=a: x for _ in range(times)],
        "views": lambda a, times: [a[0] for _ in range(times)],
        "weak references": lambda a, times: [weakref.ref(a) for _ in range(times)],
        "copies": lambda a, times: [a.clone() for _ in range(times)],
        ELSEWHERE: lambda a, times: elsewhere.append([a] * times),
        IN_A_CYCLE: lambda a, times: (box := [a] * times).append(box),  # type: ignore[func-returns-value]
    }
    return lambda a: [ways[way](a, times) for way, times in parts.items()]


def play(case: dict[str, Any], added_references: Callable[..., Any]) -> dict[str, Any]:
    elsewhere: list[Any] = []
    name = case["situation"]
    situation = made_of(case["holds"], elsewhere) if name not in WHY else Reference(LAB, name).functions()[0]
    given: list[Any] = []

    def noting(*box: Any) -> Any:
        tensor = list(box)
        del box
        fine = isinstance(tensor[0], torch.Tensor)
        given.append(weakref.ref(tensor[0]) if fine else kind_of(tensor[0]))
        return situation(tensor.pop())  # (an error that is kept keeps this frame too)

    with asleep():
        result = added_references(noting)
        calls(given)
        found, kind = number(result, whole=True), kind_of(result)
        del result
        stays = name in ("cycle", "error_kept") or {ELSEWHERE, IN_A_CYCLE} & set(case.get("holds", {}))
        words = (
            "the tensor is still there when added_references has returned: a name outside of it, or a cycle, holds it"
        )
        refuse(given[0]() is not None and not stays, words)
    refuse(found is None, "added_references returns one whole number", measured=kind)
    return {"references": found}


def calls(given: Sequence[Any]) -> None:
    """Refuse who does not call the situation once, with a new tensor."""
    refuse(not given, "the situation is never called")
    refuse(len(given) > 1, "the situation runs more than once: the second run may hold what the first has added",
           measured=f"{len(given)} calls", expected="1")  # fmt: skip
    refuse(isinstance(given[0], str), "the situation gets the tensor itself", measured=given[0])
