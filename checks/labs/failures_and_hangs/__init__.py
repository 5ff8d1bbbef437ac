"""The exercises of this lab, and what their checks draw, for whoever wants to see where an answer went wrong.

logs.py         raw_logs; launches.py: logs, stored and drawn
recorders.py    flight_recorder
standstills.py  stacks
"""

from __future__ import annotations

import os
import random
from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.engine.judging import SEED
from checks.labs.failures_and_hangs import logs, recorders, standstills

LAUNCHES = 40


@exercise(title="Raw logs", difficulty=2, minutes=35, official=logs.OFFICIAL)
def raw_logs(judge_log: Any) -> dict[str, Any]:
    """Judge ``judge_log(log)``, which returns the rank to blame, and what happened to it."""
    return judge(logs.OFFICIAL, logs.play, _cases(logs), judge_log)


@exercise(title="Read the flight recorder", difficulty=2, minutes=30, official=recorders.OFFICIAL)
def flight_recorder(first_difference: Any) -> dict[str, Any]:
    """Judge ``first_difference(dumps)``, which returns a number, what differs, and ranks; or None."""
    return judge(recorders.OFFICIAL, recorders.play, _cases(recorders), first_difference)


@exercise(title="Read the stacks", difficulty=2, minutes=25, official=standstills.OFFICIAL)
def stacks(held_up_by: Any) -> dict[str, Any]:
    """Judge ``held_up_by(stacks)``, which returns a rank and a line; or None."""
    return judge(standstills.OFFICIAL, standstills.play, _cases(standstills), held_up_by)


def drawn_log(number: int) -> str:
    """The text of a log, as its check has numbered it."""
    return _cases(logs)[number]["text"]


def drawn_dumps(number: int) -> list[dict[str, Any]]:
    """The flight recorders of a launch, as its check has numbered it: a dump for each rank."""
    return _cases(recorders)[number]["dumps"]


def drawn_stacks(number: int) -> list[str]:
    """The stacks of a launch, as its check has numbered it: a text for each rank."""
    return _cases(standstills)[number]["stacks"]


def _cases(module: Any) -> list[dict[str, Any]]:
    rng = random.Random(int(os.environ.get(SEED) or 0))
    return [module.draw(rng, number) for number in range(LAUNCHES)]
