"""Under the checks: situations as the notebook shows them, looks at what is alive, processes that really meet."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import random
import sys

import nbformat
import pytest
import torch

from checks import run
from checks.gil_and_refcounting import leaks, process_items, sharing, situations, training_loops
from course import outline

SOLUTION = outline.notebook("gil_and_refcounting", "solutions")


def test_the_notebook_shows_the_situations_word_for_word():
    cells = [cell.source for cell in nbformat.read(SOLUTION, as_version=4).cells if cell.cell_type == "code"]
    for situation in (*situations.SITUATIONS, situations.fail):
        text = inspect.getsource(situation).strip()
        assert [cell for cell in cells if text in cell], f"{situation.__name__} is not in the notebook"


def _measured():
    return {one.__name__: situations.added(one) for one in situations.SITUATIONS}


def test_the_references_that_do_not_depend_on_torch():
    expected = {"nothing_returned": 0, "three_times_in_a_list": 3, "one_list_held_twice": 1, "two_closures": 1}
    expected |= {"cycle": 1, "error_kept": 2}
    measured = run(_measured)
    assert {name: measured[name] for name in expected} == expected


def _counted_and_measured(drawn):
    import gc

    gc.disable()
    return [(situations.counted(parts), situations.added(situations.made_of(parts, []))) for parts in drawn]


def test_what_a_drawn_situation_adds_is_known_without_measuring_it():
    rng = random.Random(1)
    drawn = [[(kind, rng.randint(1, 5)) for kind in rng.sample(situations.KINDS, rng.randint(0, 9))] for _ in range(60)]
    pairs = run(_counted_and_measured, drawn)
    assert [counted for counted, _ in pairs] == [measured for _, measured in pairs]
    assert len({counted for counted, _ in pairs}) > 8


STILL = {"GPU": [512] * 13, "tensors": [7] * 13, "host": [1000] * 13}


@pytest.mark.parametrize(
    ("what", "more", "sentence"),
    [("GPU", 1, "keep plain numbers"), ("GPU", 10_000, "stays"), ("tensors", 1, "the host's does"),
     ("host", 100_000, "numbers pile up")],
)  # fmt: skip
def test_one_block_too_much_in_the_last_step_is_seen(what, more, sentence):
    facts = {"alive": STILL, "may be alive": STILL, "collector": 0, "kept": 0}
    assert list(leaks.judge_growth(facts, 2, "the graph stays")) == []
    wrong = STILL | {what: [*STILL[what][:-2], STILL[what][-2] + more, STILL[what][-1]]}
    (broken,) = leaks.judge_growth(facts | {"alive": wrong}, 2, "the graph stays")
    assert sentence in broken.sentence


def test_what_is_left_when_a_loop_is_over_is_seen():
    facts = {"alive": STILL | {"GPU": [512] * 12 + [1024]}, "may be alive": STILL, "collector": 0, "kept": 0}
    (broken,) = leaks.judge_growth(facts, 2, "the graph stays")
    assert "some of it is still there when the function has returned" in broken.sentence
    (broken,) = leaks.judge_growth(facts | {"alive": STILL, "kept": 24}, 2, "the graph stays")
    assert "stay in the host's memory when the function has returned" in broken.sentence


def test_what_an_answer_keeps_for_itself_is_counted_but_not_what_it_had_before():
    numbers = [n / 7 for n in range(100)]

    def keeps(number):
        numbers.append(number)

    for steps, kept in ((0, 0), (3, 3 * sys.getsizeof(0.5))):
        with training_loops.counted(keeps) as counts:
            for step in range(steps):
                keeps(step / 3 + 200)
        assert counts == {"collector": 0, "kept": kept}


CASES = [(case["items"], case["workers"]) for case in sharing.draw(random.Random(0))[:2]]


@pytest.mark.parametrize(("count", "workers"), CASES)
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
    left = process_items.still_there(1.0)
    process_items.end_children()
    return [left, process_items.still_there(2.0)]


def test_only_processes_that_are_still_at_work_are_left_behind():
    assert [run(_leave_one_behind, count, timeout=30) for count in (0, 2)] == [[0, 0], [2, 0]]
