"""Under the checks: situations as the notebook shows them, loops that really leak, processes that really meet."""

from __future__ import annotations

import inspect
import multiprocessing
import os

import nbformat
import pytest
import torch

from utils.checks import Wrong, gil_and_refcounting, run
from utils.checks.gil_and_refcounting import probes, process_items, situations
from utils.course import outline

SOLUTION = outline.notebook("gil_and_refcounting", "solutions")


def test_the_notebook_shows_the_situations_word_for_word():
    cells = [cell.source for cell in nbformat.read(SOLUTION, as_version=4).cells if cell.cell_type == "code"]
    for situation in (*situations.SITUATIONS, situations.fail):
        text = inspect.getsource(situation).strip()
        assert [cell for cell in cells if text in cell], f"{situation.__name__} is not in the notebook"
    for situation in situations.HIDDEN:
        assert not [cell for cell in cells if situation.__name__ in cell]


def test_every_situation_has_a_reason():
    assert list(situations.WHY) == [situation.__name__ for situation in situations.SITUATIONS]


@pytest.fixture(scope="module")
def truth():
    return run(situations.references, timeout=30)["truth"]


def test_every_wrong_way_to_measure_gives_other_numbers_than_the_right_one_and_than_the_others(truth):
    assert set(gil_and_refcounting._WAYS) == set(situations.WAYS) - {"right"}
    assert all(type(count) is int for way in truth.values() for count in way.values())
    different = [one for one in truth.values() if list(truth.values()).count(one) == 1]
    assert len(different) == len(situations.WAYS)


def test_the_references_that_do_not_depend_on_torch(truth):
    right = truth["right"]
    expected = {"weak_reference": 0, "three_times_in_a_list": 3, "cycle": 1, "cycle_collected": 0, "error_kept": 2}
    assert {name: right[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("kind", "right"),
    [("watch", probes.right_watch), ("log", probes.right_log), ("errors", probes.right_errors)],
)
def test_right_loops_keep_what_is_alive_constant(kind, right):
    for steps in gil_and_refcounting.STEPS:
        found = run(probes.leaks, right, kind, steps, timeout=30)
        assert len(found["bytes"]) == steps
        assert max(found["bytes"][2:]) <= found["bytes"][1] and found["hooks"] == found["collections"] == 0
    assert max(probes.BROKEN) < min(gil_and_refcounting.STEPS)


def test_one_block_too_much_in_the_last_step_is_seen():
    right = {"bytes": [512] * 13, "tensors": [7] * 13, "collections": 0}
    gil_and_refcounting._judge_growth("watch", right, right)
    for what, sentence in (("bytes", "keep plain numbers"), ("tensors", "the host's does")):
        wrong = right | {what: [*right[what][:-1], right[what][-1] + 1]}
        with pytest.raises(Wrong, match=sentence):
            gil_and_refcounting._judge_growth("watch", wrong, right)


@pytest.mark.parametrize(("count", "workers"), gil_and_refcounting.CASES)
def test_all_fair_ways_to_share_items_out_look_alike(count, workers):
    items = list(range(count))
    most = -(-count // workers)
    blocks = [len(items[start : start + most]) for start in range(0, count, most)]
    dealt = [len(items[worker::workers]) for worker in range(workers)]
    cut = [len(part) for part in torch.tensor(items).tensor_split(workers)]
    assert blocks == dealt == cut and count % workers


def _both(function, items, workers):
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
    _both(process_items.InStep(str(together), [3, 5], 2), [3, 5], 2)
    assert not (together / "alone").exists() and len(list(together.glob("*.done"))) == 2
    monkeypatch.setattr(process_items, "STILL_S", 0.3)
    _both(process_items.InStep(str(alone), [3, 5], 2), [3], 2)
    assert (alone / "alone").exists()


def _leave_one_behind(count):
    fork = multiprocessing.get_context("fork")
    for _ in range(count):
        fork.Process(target=os.read, args=(os.pipe()[0], 1), daemon=True).start()
    fork.Process(target=int).start()  # ends by itself
    return process_items._still_there(1.0)


def test_only_processes_that_are_still_at_work_are_left_behind():
    assert [run(_leave_one_behind, count, timeout=30) for count in (0, 2)] == [0, 2]


def test_an_error_that_comes_out_is_named_and_the_checks_own_words_go_through():
    def fails(error):
        raise error

    assert probes.raised_by(fails, KeyError("x")) == "KeyError"
    assert probes.raised_by(list, []) == ""
    with pytest.raises(Wrong, match="for ever"):
        probes.raised_by(fails, Wrong("waits for ever"))
