"""How a lab is judged: a check is a test, and the official solution is its reference.

exercises.py   what a lab's package defines and a notebook calls
verdicts.py    ○ not started, ✗ wrong: sentence, ✓ right: figures
processes.py   run: learners' functions in fresh processes, under a time-out
inside.py      what runs in the process, and turns every failure into a sentence
printed.py     what an answer prints, shown beside the verdict
standstill.py  ranks that wait for each other are found and ended
answers.py     a learner's function on its way there; plain.py: values on their way back
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

    @exercise(OFFICIAL, cases, title="Twice as much")
    def twice(case, double):
        result = double(case["x"])
        refuse(result is None, "nothing comes back: is there a return?")
        return {"the result": result}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checks.engine.exercises import exercise
    from checks.engine.judging import judge
    from checks.engine.reference import Reference
    from checks.engine.refusing import leaves, refuse, same
    from checks.engine.watching import watched

__all__ = ["Reference", "exercise", "judge", "leaves", "refuse", "same", "watched"]
_HOME = {"Reference": "reference", "exercise": "exercises", "judge": "judging", "watched": "watching"}


def __getattr__(name: str) -> Any:
    """Imported when asked for: `make lab`'s start page needs the exercises, and not torch."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOME.get(name, 'refusing')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
