"""The core of the checks: an answer beside the official solution, its mistakes, what is refused and how it is told."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import threading

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from ranks_support import eventually

from checks import NotStarted, Wrong
from checks.engine import Reference, judge, leaves, refuse, same, watched
from checks.engine.answers import Answer
from checks.engine.exercises import all_exercises
from checks.engine.reference import FOLDER
from course.outline import ROOT
from utils.ranks import RanksInterrupted

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest

WITH_OFFICIAL = [exercise for exercise in all_exercises() if exercise.official]
HALF = Reference(
    "toy",
    "half",
    {"it rounds up": {"x // 2": "-(-x // 2)"}, "negative numbers are taken as positive": {"x // 2": "abs(x) // 2"}},
    text="def half(x):\n    return x // 2\n",
)
SUM = Reference(
    "toy",
    "total",
    {"the mean is taken, not the sum": {"return x": "return x / dist.get_world_size()"}},
    text="import torch.distributed as dist\n\ndef total(x):\n    dist.all_reduce(x)\n    return x\n",
)


def _numbers(rng, number):
    return {"x": 4 if number == 0 else rng.randint(-50, 50), "seed": number}


def _halved(case, half):
    result = half(case["x"])
    refuse(result is None, "nothing comes back")
    return {"the half": result}


def _total(case, total):
    with watched(["all_reduce"]) as seen:
        result = total(torch.full((2,), float(dist.get_rank() + case["x"])))
    refuse(seen.sent() > 8, "sends more than the tensor", measured=seen.sent(), expected=8)
    return {"the sum": result}


def _judged(answer, reference=HALF, play=_halved, cases=_numbers, **more):
    try:
        return judge(reference, play, cases, Answer.of(answer, reference.names), timeout=20, **more)
    except Wrong as wrong:
        return wrong.text


def test_a_right_answer_is_right_in_every_case():
    assert _judged(lambda x: x >> 1) == {"cases": 6}


def test_cases_are_drawn_until_every_mistake_has_shown():
    def late(rng, number):
        return {"x": 4 if number < 20 else -5}

    assert _judged(lambda x: x >> 1, cases=late)["cases"] == 6 + 1  # six at least, and the one in which both show


def test_a_mistake_that_never_shows_is_a_defect_of_the_check():
    with pytest.raises(Exception, match=r"no case shows: \['it rounds up'"):
        judge(HALF, _halved, lambda rng, number: {"x": 4}, Answer.of(lambda x: x >> 1, "half"), timeout=20)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: round(x / 2 + 0.25), "it rounds up (x"),
        (lambda x: abs(x) // 2, "negative numbers are taken as positive (x -"),
        (lambda x: None, "nothing comes back (x 4)"),
        (lambda x: x, "the half: not what the exercise says (x 4; measured: 4; expected: 2)"),
        (lambda x: 2 if x == 4 else 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong_and_where(answer, says):
    assert says in _judged(answer)


def test_an_answer_that_says_so_is_not_started():
    def half(x):
        raise NotImplementedError("Write your answer here")

    with pytest.raises(NotStarted):
        _judged(half)


def test_an_endless_loop_ends():
    def half(x):
        while True:
            pass

    with pytest.raises(Wrong, match="not finished after 2 s"):
        judge(HALF, _halved, _numbers, Answer.of(half, "half"), timeout=2)


def test_an_interrupt_names_the_line_in_which_an_answer_never_ends(tmp_path):
    def half(x):
        (tmp_path / "begun").touch()
        while True:
            x += 1

    def interrupt():
        assert eventually((tmp_path / "begun").exists, 60)
        os.kill(os.getpid(), signal.SIGINT)

    (thread := threading.Thread(target=interrupt)).start()
    with pytest.raises(RanksInterrupted) as stopped:
        _judged(half)
    thread.join()
    assert re.search(r"x \+= 1|while True", stopped.value.report)


def test_what_an_answer_leaves_behind_is_gone_in_the_next_judgement():
    def half(x):
        assert not hasattr(torch, "left_behind") or x != 4
        torch.left_behind = x
        return x // 2

    assert _judged(half) == _judged(half) == {"cases": 6}


def test_seeds_give_other_cases(monkeypatch):
    def half(x):
        return x // 2 if x == 4 else x

    found = set()
    for seed in "0", "1", "1":
        monkeypatch.setenv("COURSE_SEED", seed)
        found.add(_judged(half))
    assert len(found) == 2


# ---------------------------------------------------------------------- on ranks
RANKS = {"reference": SUM, "play": _total, "cases": [{"x": 1}, {"x": 2}], "ranks": (2, 3)}


def _on_ranks(answer):
    return _judged(answer, **RANKS)


def test_on_ranks_every_world_plays_all_cases():
    def total(x):
        dist.all_reduce(x, async_op=True).wait()
        return x

    assert _on_ranks(total) == {"cases": 4}


def test_on_ranks_a_mistake_is_named():
    def total(x):
        dist.all_reduce(x, dist.ReduceOp.AVG) if False else dist.all_reduce(x)
        return x.mul(1 / dist.get_world_size())

    assert "the mean is taken, not the sum (x 1; on rank 0, the sum: measured" in _on_ranks(total)


def test_on_ranks_it_says_which_rank_is_wrong():
    def total(x):
        dist.all_reduce(x)
        return x + dist.get_rank()

    assert "on rank 1, the sum: not what the exercise says (x 1; measured: at [0] 4; expected: 3)" in _on_ranks(total)


def test_on_ranks_a_forgotten_wait_is_told():
    def total(x):
        dist.all_reduce(x, async_op=True)
        return x

    assert "never waits for all_reduce" in _on_ranks(total)


def test_on_ranks_what_is_not_allowed_and_what_is_too_much_is_told():
    def twice(x):
        dist.all_reduce(x)
        dist.all_reduce(torch.ones(1))
        return x

    def gathered(x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return sum(parts)

    assert "sends more than the tensor (x 1; measured: 12; expected: 8)" in _on_ranks(twice)
    assert "calls all_gather, and all_reduce is all" in _on_ranks(gathered)


def test_on_ranks_functional_collectives_are_seen_too():
    def total(x):
        import torch.distributed._functional_collectives as functional

        return functional.all_reduce(x, "sum", dist.group.WORLD).clone()

    assert _on_ranks(total) == {"cases": 2 * 2}

    def twice(x):
        import torch.distributed._functional_collectives as functional

        return functional.all_reduce(torch.cat([x, x]), "sum", dist.group.WORLD)[:2].clone()

    assert "sends more than the tensor" in _on_ranks(twice)


def test_on_ranks_pieces_for_all_may_be_uneven():
    def total(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        sizes = [1 + (rank + other) % 2 for other in range(n)]  # as many there as back
        there, back = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
        dist.all_to_all_single(there, x[:1].expand(sum(sizes)).contiguous(), sizes, sizes)
        dist.all_to_all_single(back, there, sizes, sizes)
        return torch.stack([part[0] for part in there.split(sizes)]).sum().expand(2).clone()

    def play(case, total):
        with watched():
            return {"the sum": total(torch.full((2,), float(dist.get_rank() + case["x"])))}

    assert _judged(total, SUM, play, [{"x": 1}], ranks=(3,)) == {"cases": 1}


def test_ranks_that_do_not_agree_do_not_hang():
    def total(x):
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        return x

    assert "the ranks do not call the same collectives" in _on_ranks(total)


# ---------------------------------------------------------------------- single calls
def test_what_a_call_has_to_leave_is_named():
    model, x = torch.nn.Linear(2, 2), torch.ones(2)
    with leaves(model=model, x=x):
        model(x)
    for change, name in [
        (lambda: x.add_(1), "`x`"),
        (lambda: model.eval(), "`model`"),
        (lambda: model(x).sum().backward(), "`model`"),
        (lambda: torch.rand(1), "torch's random generator"),
        (lambda: random.random(), "Python's random generator"),
    ]:
        with pytest.raises(Wrong, match=name), leaves(model=model, x=x):
            change()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([1, 2.0], (1.0, 2), True),
        (torch.tensor([1, 2]), [1, 2], True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-5]), True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.001]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), True),
        (torch.tensor([float("inf")]), torch.tensor([1.0]), False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        (1, None, False),
        (True, "True", False),
    ],
)
def test_same_is_the_same_but_for_rounding(one, other, alike):
    assert same(one, other) is alike
    assert same(other, one) is alike


# ---------------------------------------------------------------------- the labs that use it
def test_a_mistake_of_another_official_solution_is_noticed():
    with pytest.raises(ValueError, match="'x / 3' of 'old' is not in the official solution"):
        Reference("toy", "half", {"old": {"x / 3": "x"}}, text=HALF.text).functions("old")


@pytest.mark.parametrize("exercise", WITH_OFFICIAL, ids=lambda one: f"{one.lab}-{one.name}")
def test_every_mistake_is_a_change_of_todays_solution(exercise):
    for mistake in exercise.official.mistakes:
        assert len(exercise.official.functions(mistake)) == len(exercise.parameters)


def test_a_reference_needs_no_solutions(tmp_path, monkeypatch):
    exercise = WITH_OFFICIAL[0]
    shutil.copy(FOLDER / f"{exercise.lab}.py", tmp_path)
    monkeypatch.setattr("checks.engine.reference.FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    again = Reference(exercise.lab, exercise.official.names)
    assert exercise.official.names.split()[0] in again.program
    assert str(ROOT / "solutions") not in again.program
    assert exercise.verdict(*again.functions())
