"""Checks that start no processes, for tests of grading: an answer is right when its constants hold the word."""

from __future__ import annotations

from typing import Any

from checks import Wrong, exercise
from checks.points import passed

LAB = "words"
WORD = "forty-two"
RIGHT = f"lambda: {WORD!r}"


def _judge(answer: Any) -> str:
    if WORD.encode() not in answer.payload:
        raise Wrong(f"Say {WORD}")
    return "it says so"


@exercise(lab=LAB, title="First word")
def first(first: Any) -> str:
    """Judge a function that says the word."""
    return _judge(first)


@exercise(lab=LAB, title="Second word", difficulty=2)
def second(second: Any) -> str:
    """Judge another."""
    return _judge(second)


@exercise(lab=LAB, title="Two words", parts={"left": 1, "right": 3})
def both(left: Any, right: Any) -> str:
    """Judge two functions, of which each has points."""
    _judge(left)
    passed("left")
    return _judge(right)


@exercise(lab=LAB, title="Never judged", points=5, needs=("no_such_module",))
def never(never: Any) -> None:
    """Judge nothing, for what it needs is nowhere."""
