"""How a lab is judged: a check is a test, and the official solution is its reference.

judging.py     judge: an answer beside the official solution, case by case, in a fresh process or on fresh ranks
reference.py   the official solution and its likely mistakes, which are changes of its text
refusing.py    refuse(condition, sentence), what a call has to leave as it was, and when two values are the same
watching.py    watched(): what a function sends, how much, and when it waits
wire.py        what is sent arrives as late as it may; launches.py, messages.py: a collective, send and recv
memory.py      how many bytes a call holds
gpus.py        what is copied, computed and held on simulated GPUs

    OFFICIAL = Reference("my_lab", "double", {"it is squared": {"2 * x": "x * x"}})

    def cases(rng, number):
        return {"x": 3 if number == 0 else rng.randrange(100)}

    def play(case, double):
        result = double(case["x"])
        refuse(result is None, "nothing comes back: is there a return?")
        return {"the result": result}

    @exercise(title="Twice as much", official=OFFICIAL)
    def double(double):
        return judge(OFFICIAL, play, cases, double)
"""

from __future__ import annotations

from checks.core.judging import judge
from checks.core.reference import Reference
from checks.core.refusing import leaves, refuse, same
from checks.core.watching import watched

__all__ = ["Reference", "judge", "leaves", "refuse", "same", "watched"]
