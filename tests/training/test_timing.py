"""Best-of-n timing: cases take turns, threads and ranks work at the same time, and all ranks get one number."""

from __future__ import annotations

import time

import utils
from lessons.training.timing import best_of, seconds_on_ranks


def test_cases_take_turns_and_the_shortest_time_of_each_counts():
    times = iter([5.0, 50.0, 3.0, 70.0, 4.0, 60.0])
    asked = []

    def measure(case: str) -> float:
        asked.append(case)
        return next(times)

    assert best_of(measure, ("a", "b"), rounds=3) == [3.0, 50.0]
    assert asked == ["a", "b"] * 3


def test_ranks_that_wait_see_the_time_of_those_that_work():
    pause = 0.05
    ends = utils.launch(lambda: seconds_on_ranks(lambda: time.sleep(pause), 1), ranks=2, backend="gloo")
    assert ends[0] == ends[1] >= pause
