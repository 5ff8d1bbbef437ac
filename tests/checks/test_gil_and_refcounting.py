"""Under the checks: the references that do not depend on torch, and processes that really meet."""

from __future__ import annotations

import multiprocessing
import os

from checks import run
from checks.labs.gil_and_refcounting import predicting, process_items


def test_the_references_that_do_not_depend_on_torch():
    expected = {"nothing_returned": 0, "three_times_in_a_list": 3, "one_list_held_twice": 1, "two_closures": 1}
    expected |= {"cycle": 1, "error_kept": 2}
    measured = run(predicting.truth)
    assert {name: measured[name] for name in expected} == expected


def _both(function, items):
    fork = multiprocessing.get_context("fork")
    team = [fork.Process(target=function, args=(item,)) for item in items]
    for process in team:
        process.start()
    for process in team:
        process.join(20)


def test_processes_that_work_together_meet_and_one_alone_does_not(tmp_path, monkeypatch):
    together, alone = tmp_path / "together", tmp_path / "alone"
    for folder in (together, alone):
        folder.mkdir()
    _both(process_items.InStep(str(together), [3, 5], 2), [3, 5])
    assert not (together / "alone").exists() and len(list(together.glob("0.*"))) == 2
    monkeypatch.setattr(process_items, "MEETING_S", 0.3)
    _both(process_items.InStep(str(alone), [3, 5], 2), [3])
    assert (alone / "alone").exists()


def _leave_some_behind(count):
    fork = multiprocessing.get_context("fork")
    for _ in range(count):
        fork.Process(target=os.read, args=(os.pipe()[0], 1), daemon=True).start()
    fork.Process(target=int).start()  # ends by itself
    return [process_items.end_children(1.0), process_items.end_children(2.0)]


def test_only_processes_that_are_still_at_work_are_left_behind():
    assert [run(_leave_some_behind, count, timeout=30) for count in (0, 2)] == [[0, 0], [2, 0]]
