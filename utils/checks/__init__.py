"""Checks of the labs: one module per lab, and the small vocabulary that they share.

framework.py   exercises: what a lab's module defines and a notebook calls
verdicts.py    ○ not started, ✗ wrong: sentence, ✓ right: figures
sandbox.py     run, run_cases: a learner's functions in rank processes, under a time-out
answers.py     a learner's function on its way there
inside.py      what runs in the rank, and turns every failure into a sentence
plain.py       values on their way back
compare.py     expect: is it what it should be, and how far off is it?
recorder.py    record_collectives: what an answer says to other ranks
overview.py    progress(): what is done; memory.py keeps it between sessions
lab_NN.py      the exercises of lab NN
"""

from __future__ import annotations

from utils.checks.compare import expect, how_far
from utils.checks.framework import Exercise, exercise
from utils.checks.overview import progress
from utils.checks.plain import Opaque
from utils.checks.recorder import Collective, Record, record_collectives
from utils.checks.sandbox import run, run_cases
from utils.checks.verdicts import NotStarted, Verdict, Wrong

__all__ = [
    "Collective",
    "Exercise",
    "NotStarted",
    "Opaque",
    "Record",
    "Verdict",
    "Wrong",
    "exercise",
    "expect",
    "how_far",
    "progress",
    "record_collectives",
    "run",
    "run_cases",
]
