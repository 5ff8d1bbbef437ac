"""Checks of the labs: a package for each lab, named by its slug, and the small vocabulary that they share.

framework.py   exercises: what a lab's package defines and a notebook calls
verdicts.py    ○ not started, ✗ wrong: sentence, ✓ right: figures
sandbox.py     run: learners' functions in rank processes, under a time-out
standstill.py  ranks that wait for each other are ended at once; threads.py tells waiting from working
answers.py     a learner's function on its way there
contracts/     checks that judge by contract: what an exercise allows, as data; everything else is refused
inside.py      what runs in the rank, and turns every failure into a sentence
plain.py       values on their way back
overview.py    progress(): what is done; memory.py keeps it between sessions
start_page.py  the page on which `make lab` opens
points.py      what an exercise is worth, and what a wrong answer has earned of it
grading/       a table of many learners' labs
"""

from __future__ import annotations

from checks.framework import Exercise, exercise
from checks.overview import progress
from checks.plain import Opaque
from checks.points import passed
from checks.sandbox import run
from checks.verdicts import NotStarted, Verdict, Wrong

__all__ = [
    "Exercise",
    "NotStarted",
    "Opaque",
    "Verdict",
    "Wrong",
    "exercise",
    "passed",
    "progress",
    "run",
]
