"""Check of ``schedule``: an order is right that never waits for ever, holds little, and is as short as Megatron's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import from_array, shorten

OFFICIAL = Reference("pipeline_schedules", "schedule")
_SIZES = [(4, 8, 1), (4, 8, 2), (2, 2, 1), (3, 7, 1), (2, 4, 3), (3, 5, 2), (4, 2, 1), (4, 3, 2), (1, 3, 1), (1, 2, 2),
          (5, 15, 1), (8, 16, 2), (4, 12, 4), (6, 1, 1)]  # fmt: skip
CASES = [{"p": p, "m": m, "v": v} for p, m, v in _SIZES]


@exercise(OFFICIAL, CASES, title="The order of a schedule", difficulty=3, minutes=30, timeout=30)
def schedule(case: dict[str, Any], schedule: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``schedule(p, m, v)``."""
    p, m, v = case["p"], case["m"], case["v"]
    rows = _rows(schedule(p, m, v), p)
    for rank, row in enumerate(rows):
        expected = {(s, kind, i) for s in range(rank, v * p, p) for kind in "FB" for i in range(m)}
        for action, times in Counter(row).items():
            refuse(action not in expected, f"row {rank} has {_name(action)}, which rank {rank} does not have to do")
            refuse(times > 1, f"row {rank} has {_name(action)} {times} times")
        missing = sorted(expected - set(row))
        refuse(missing, f"row {rank} lacks {_name(missing[0])}" if missing else "")
    longest = 3 * v * -(-m // p) * p + 3 * (p - 1)
    ends = _run(rows, last=v * p - 1)
    for rank, row in enumerate(rows):
        bound, waiting = p - rank if v == 1 else 2 * (p - 1 - rank) + (v - 1) * p + 1, 0
        for action in row:
            waiting += 1 if action[1] == "F" else -1
            fault = f"on rank {rank}, {waiting} forward passes wait for their backward pass after {_name(action)}"
            refuse(waiting > bound, f"{fault}: too many go ahead of the first backward passes", expected=bound)
    took = max(ends.values())
    fault = "the step takes longer than the target: in this order, ranks wait for others while they have other work"
    refuse(took > longest, fault, measured=took, expected=f"at most {longest}")
    return {"all": "done"}


def _rows(result: Any, p: int) -> list[list[tuple[int, str, int]]]:
    """The answer as (stage, kind, micro-batch)."""
    rows = [from_array(row) for row in result] if isinstance(result, list | tuple) else None
    refuse(
        rows is None or len(rows) != p, "the result is not a list with a row for each rank", measured=shorten(result)
    )
    found = []
    for row in rows or ():
        parts = [re.fullmatch(r"(\d+)([FB])(\d+)", str(action)) for action in row]
        wrong = next((action for action, part in zip(row, parts, strict=True) if part is None), None)
        refuse(None in parts, 'an action is not written as "2F5" or "2B5"', measured=shorten(wrong))
        found.append([(int(part[1]), part[2], int(part[3])) for part in parts if part])
    return found


def _run(rows: list[list[tuple[int, str, int]]], last: int) -> dict[tuple[int, str, int], int]:
    """When each action ends, if each rank does each as soon as it can."""
    ends: dict[tuple[int, str, int], int] = {}
    left, free = [list(reversed(row)) for row in rows], [0] * len(rows)
    going = True
    while going:
        going = False
        for rank, row in enumerate(left):
            while row and (not (need := _needs(row[-1], last)) or need in ends):
                start = max(free[rank], ends[need] if need else 0)
                ends[row[-1]] = free[rank] = start + (1 if row[-1][1] == "F" else 2)
                row.pop()
                going = True
    stuck = [
        f"rank {rank} with {_name(row[-1])} for {_name(_needs(row[-1], last))}" for rank, row in enumerate(left) if row
    ]
    refuse(stuck, f"this schedule waits for ever: {', '.join(stuck[:3])}")
    return ends


def _needs(action: tuple[int, str, int], last: int) -> Any:
    """The action that has to be over before; None: there is none."""
    stage, kind, i = action
    if kind == "F":
        return (stage - 1, "F", i) if stage else None
    return (stage, "F", i) if stage == last else (stage + 1, "B", i)


def _name(action: tuple[int, str, int]) -> str:
    return "{}{}{}".format(*action)
