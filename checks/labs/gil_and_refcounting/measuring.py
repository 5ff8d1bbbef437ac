"""Check of ``added_references``: a tool that counts the references which a situation adds."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of, number
from checks.labs.gil_and_refcounting.leaks import asleep
from checks.labs.gil_and_refcounting.predicting import LAB, WHY

OFFICIAL = Reference(LAB, "added_references", {
    "what the situation returns must stay alive until you have counted: give it a name":
        {"    kept = situation(a)\n": "    situation(a)\n", "    del kept\n": ""},
    "these are all references to the tensor: count before and after, and take the difference":
        {"after - before": "after"},
})  # fmt: skip
ELSEWHERE: list[Any] = []
MADE_UP: dict[str, Callable[[Any], Any]] = {
    "a dict": lambda a: {number: [a] for number in range(4)},
    "views": lambda a: [a[None] for _ in range(3)],
    "views and a list": lambda a: [a[None], a.detach(), [a, a]],
    "weak references": lambda a: [weakref.ref(a) for _ in range(5)],
    "default arguments": lambda a: [lambda x=a: x for _ in range(3)],
    "copies and a dict": lambda a: [a.clone(), {"one": a, "another": a}],
    "30,000 places": lambda a: [a] * 30_000,
    "a list elsewhere": lambda a: ELSEWHERE.append([a] * 700),
    "a list in a cycle": lambda a: (box := [a] * 6).append(box),
    "nothing": lambda a: None,
}
STAYS = "cycle", "error_kept", "a list elsewhere", "a list in a cycle"
CASES = [{"situation": name} for name in (*WHY, *MADE_UP)]


@exercise(OFFICIAL, CASES, title="Measure reference counts", difficulty=1, minutes=10)
def measure(case: dict[str, Any], added_references: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``added_references(situation)``: how many references to a new tensor a situation adds."""
    name, given = case["situation"], list[weakref.ref[torch.Tensor]]()
    situation = MADE_UP.get(name) or Reference(LAB, name).functions()[0]

    def noting(*arguments: Any) -> Any:
        box = list(arguments)
        del arguments  # (an error that is kept keeps this frame too: it names no tensor)
        refuse(not isinstance(box[0], torch.Tensor), "the situation gets the tensor itself", measured=kind_of(box[0]))
        given.append(weakref.ref(box[0]))
        return situation(box.pop())

    with asleep():
        result = added_references(noting)
        refuse(not given, "the situation is never called")
        fault = "the situation runs more than once: the second run may hold what the first has added"
        refuse(len(given) > 1, fault, measured=f"{len(given)} calls", expected="1")
        fine = number(result, whole=True) is not None
        refuse(not fine, "added_references returns one whole number", measured=kind_of(result))
        fault = "the tensor is still there when added_references has returned: a name outside, or a cycle, holds it"
        refuse(given[0]() is not None and name not in STAYS, fault)
    return {"references": result}
