"""Checks of the labs.

engine/         how a lab is judged: an answer beside the official solution, in a fresh process or on fresh ranks
labs/           what is judged: a package for each lab
reference/      the official solutions; `make labs` writes it
grade/          a table of many learners' labs
points.py       what an exercise is worth, and what a wrong answer has earned of it
memory.py       what this learner has done, kept between sessions
overview.py     progress(): every lab, and what is done of it
start_page.py   the page on which `make lab` opens
"""

from __future__ import annotations

from checks.engine.exercises import Exercise, exercise
from checks.engine.plain import Opaque
from checks.engine.processes import run
from checks.engine.verdicts import NotStarted, Verdict, Wrong
from checks.overview import progress
from checks.points import passed

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
