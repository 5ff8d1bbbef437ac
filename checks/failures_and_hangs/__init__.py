"""The exercises of this lab, and what their checks draw, for whoever wants to see where an answer went wrong.

judging_logs.py         raw_logs, with drawn_logs.py (who is to blame) and log_texts.py (what torch prints)
comparing_recorders.py  flight_recorder, with drawn_recorders.py
reading_stacks.py       stacks, with drawn_standstills.py
"""

from __future__ import annotations

from typing import Any

from checks.contracts import cases_of, judge
from checks.failures_and_hangs import comparing_recorders, judging_logs, reading_stacks
from checks.framework import exercise


@exercise(title="Raw logs", difficulty=2, minutes=35)
def raw_logs(judge_log: Any) -> dict[str, Any]:
    """Judge ``judge_log(log)``, which returns the rank to blame, and what happened to it."""
    return judge(judging_logs.CONTRACT, judge_log)


@exercise(title="Read the flight recorder", difficulty=2, minutes=30)
def flight_recorder(first_difference: Any) -> dict[str, Any]:
    """Judge ``first_difference(dumps)``, which returns a number, what differs, and ranks; or None."""
    return judge(comparing_recorders.CONTRACT, first_difference)


@exercise(title="Read the stacks", difficulty=2, minutes=25)
def stacks(held_up_by: Any) -> dict[str, Any]:
    """Judge ``held_up_by(stacks)``, which returns a rank and a line; or None."""
    return judge(reading_stacks.CONTRACT, held_up_by)


def drawn_log(number: int) -> str:
    """The text of a drawn log, as its check has numbered it."""
    (case,) = cases_of(judging_logs.CONTRACT.name, judging_logs.draw)
    return next(log["text"] for log in case["logs"] if log["name"] == f"drawn log {number}")


def drawn_dumps(number: int) -> list[dict[str, Any]]:
    """The flight recorders of a launch, as its check has numbered it: a dump for each rank."""
    (case,) = cases_of(comparing_recorders.CONTRACT.name, comparing_recorders.draw)
    return case["launches"][number - 1]["dumps"]


def drawn_stacks(number: int) -> list[str]:
    """The stacks of a launch, as its check has numbered it: a text for each rank."""
    (case,) = cases_of(reading_stacks.CONTRACT.name, reading_stacks.draw)
    return case["launches"][number - 1]["stacks"]
