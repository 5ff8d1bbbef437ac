"""Check of ``exposed``: time on which only communication runs, and time on which nothing does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import from_array, shorten

START = "    def busy(spans, time):"
REST = "    return alone, exposed_(compute, communication)[1]\n\n\ndef exposed_(compute, communication):\n" + START
ALONE = "                alone += end - begin"
OFFICIAL = Reference("measuring", "exposed", {
    "all communication is counted, also what is hidden":
        {"        if not busy(compute, begin):": "        if busy(communication, begin) or not busy(compute, begin):"},
    "computing is subtracted from communication by its length, wherever it lies":
        {START: "    length = [sum(e - b for b, e in spans) for spans in (communication, compute)]\n"
         "    alone = max(0, length[0] - length[1])\n" + REST},
    "spans of communication that overlap are counted twice":
        {ALONE: "                alone += (end - begin) * sum(b <= begin < e for b, e in communication)"},
    "only computing that covers a whole span of communication hides it":
        {START: "    shown = [s for s in communication if not any(x <= s[0] and s[1] <= y for x, y in compute)]\n"
         "    alone = sum(e - b for b, e in shown)\n" + REST},
    "time on which it does neither begins only with the first computing":
        {"neither += end - begin": "neither += (end - begin) * any(b < end for b, _ in compute)"},
    "time on which it does neither is all time without computing":
        {"            else:\n                neither": "            if True:\n                neither"},
})  # fmt: skip


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    if number == 0:
        return {"compute": [(0, 40), (40, 80), (90, 110)], "communication": [(30, 70), (80, 100)]}

    def spans() -> list[tuple[int, int]]:
        found = []
        for _ in range(rng.choice((0, 1, 2, 3, 6))):
            begin = rng.randint(0, 40)
            found.append((begin, begin + rng.choice((0, 1, 3, 10))))
        return found

    return {"compute": spans(), "communication": spans()}


@exercise(OFFICIAL, draw, title="Communication that nobody hides", difficulty=2, minutes=15, timeout=30)
def exposed(case: dict[str, Any], exposed: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``exposed(compute, communication)``."""
    with leaves(**case):
        found = from_array(exposed(case["compute"], case["communication"]))
    fine = isinstance(found, tuple | list) and len(found) == 2
    refuse(not fine, "the result is not two numbers: (exposed, neither)", measured=shorten(found))
    alone, neither = (from_array(one) for one in found)
    return {"communication alone": alone, "neither": neither}
