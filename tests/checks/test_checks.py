"""Checks: whatever a learner's function does, the notebook gets one clear sentence and goes on."""

from __future__ import annotations

import ctypes
import html
import os
import re
import signal
import sys
import threading
from pathlib import Path

import cloudpickle
import pytest
import toy_checks as check

from checks import NotStarted, Wrong, exercise, run
from checks.engine.answers import Answer
from checks.engine.inside import OpenAnswer

lock = threading.Lock()
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as if these functions stood in a notebook


@pytest.fixture(autouse=True)
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    return path


def said(verdict) -> str:
    """The verdict as a learner reads it; as text and as HTML it must say the same."""
    shown = html.unescape(re.sub("<.*?>", "", verdict._repr_html_()))
    assert shown.replace("\n", "") == repr(verdict).replace("\n", "")
    return repr(verdict)


# ---------------------------------------------------------------- the three verdicts
def test_a_right_answer_shows_its_figures():
    verdict = check.add(lambda a, b: a + b)
    assert said(verdict) == "✓ right: cases: 3"
    assert verdict


def test_an_unwritten_answer_is_not_started():
    def add(a, b):
        raise NotImplementedError("Write your answer here")

    verdict = check.add(add)
    assert said(verdict) == "○ not started"
    assert not verdict


def test_a_half_written_answer_is_not_started_either():
    def mean_over_ranks(tensor):
        dist.all_reduce(tensor)  # noqa: F821
        try:
            with lock_free():
                raise NotImplementedError
        finally:
            tensor = None

    import contextlib

    lock_free = contextlib.nullcontext
    assert said(check.mean_over_ranks(mean_over_ranks)) == "○ not started"


def test_a_wrong_answer_says_what_was_measured_and_expected():
    verdict = check.add(lambda a, b: a + b + 3)
    assert said(verdict) == "✗ wrong: Did you add the numbers? (measured: 6; expected: 3)"
    assert not verdict


def test_several_functions_are_judged_together():
    assert check.there_and_back(lambda x: x[::-1], lambda x: x[::-1])
    assert "measured: [2, 1, 3]" in said(check.there_and_back(lambda x: x[::-1], lambda x: x[:]))


def test_an_answer_on_ranks_finds_the_names_that_ranks_have():
    def mean_over_ranks(tensor):
        dist.all_reduce(tensor)  # noqa: F821
        return tensor / world_size  # noqa: F821

    assert said(check.mean_over_ranks(mean_over_ranks)) == "✓ right: all-reduces: 1"


def test_a_check_sees_how_an_answer_works_and_not_only_its_value():
    def mean_over_ranks(tensor):
        for _ in range(2):
            dist.all_reduce(tensor)  # noqa: F821
        return tensor / 4

    assert "measured: all_reduce, all_reduce; expected: all_reduce" in said(check.mean_over_ranks(mean_over_ranks))


# ---------------------------------------------------------------- what goes wrong inside
def endless(a, b):
    while True:
        pass


def leaves_the_program(a, b):
    sys.exit()


def ends_the_process(a, b):
    os._exit(0)


def reads_address_zero(a, b):
    return ctypes.string_at(0)


def kills_itself(a, b):
    os.kill(os.getpid(), signal.SIGKILL)


def interrupts_itself(a, b):
    raise KeyboardInterrupt


def divides_by_zero(a, b):
    try:
        return a / 0
    finally:
        b += 1


def calls_itself(a, b):
    return calls_itself(a, b)


def raises_from_torch(a, b):
    import torch

    return torch.ones(1, device="meta").cpu()


def needs_a_lock(a, b):
    with lock:
        return a + b


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (endless, "add was not finished after 2 s: is there a loop that never ends?"),
        (leaves_the_program, "add calls sys.exit(), in line {line}: `sys.exit()`, which ends the whole"),
        (ends_the_process, "add ended its process (exit code 0)."),
        (reads_address_zero, "add ended its process (killed by SIGSEGV)."),
        (kills_itself, "add ended its process (killed by SIGKILL"),
        (interrupts_itself, "add raised KeyboardInterrupt, in line {line}: `raise KeyboardInterrupt`."),
        (divides_by_zero, "add raised ZeroDivisionError: division by zero, in line {line}: `return a / 0`."),
        (calls_itself, "add raised RecursionError: maximum recursion depth exceeded"),
        (raises_from_torch, "add raised NotImplementedError: Cannot copy out of meta tensor"),
        (needs_a_lock, "add uses something from the notebook that cannot be sent to another process"),
        (3, "give the check the function add itself, without calling it"),
        (None, "give the check the function add itself, without calling it"),
        (lambda a: a, "add raised TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_every_fault_ends_in_one_sentence(answer, sentence, monkeypatch):
    if answer is endless:
        monkeypatch.setattr(check, "SECONDS", 2)
    if "{line}" in sentence:
        code = answer.__code__
        sentence = sentence.format(line=code.co_firstlineno + (2 if answer is divides_by_zero else 1))
    text = said(check.add(answer))
    assert sentence in text
    assert text.startswith("✗ wrong: ") and "\n" not in text


def test_a_million_printed_lines_harm_nobody(capfd):
    def add(a, b):
        for number in range(1_000_000 if a == 1 else 1):
            print("line", number)
        print("to stderr", file=sys.stderr)
        os.write(1, b"below Python\n" * 1000)
        return a + b

    assert check.add(add)
    assert capfd.readouterr() == ("", "")


def test_the_wrong_number_of_functions_is_named():
    assert "this check takes 2 functions: check.there_and_back(pack, unpack)" in said(check.there_and_back(abs))
    assert "this check takes 1 function: check.add(add)" in said(check.add())


def test_a_rank_that_never_comes_ends_in_the_table_of_waiting_ranks():
    def mean_over_ranks(tensor):
        if rank == 1:  # noqa: F821
            return tensor
        dist.all_reduce(tensor)  # noqa: F821
        return tensor

    text = said(check.mean_over_ranks(mean_over_ranks))
    assert "mean_over_ranks was not finished: does a rank wait for another that never comes? Rank 0 waits in" in text
    assert "rank 0 waits in all_reduce for rank 1: rank 1 has finished" in text


def test_the_rank_that_failed_is_named_and_ranks_that_fail_alike_are_not():
    def one_fails(tensor):
        if rank == 1:  # noqa: F821
            raise ValueError("odd")
        dist.all_reduce(tensor)  # noqa: F821
        return tensor

    def all_fail(tensor):
        raise ValueError("even")

    assert "wrong: on rank 1 mean_over_ranks raised ValueError: odd" in said(check.mean_over_ranks(one_fails))
    assert "wrong: mean_over_ranks raised ValueError: even" in said(check.mean_over_ranks(all_fail))


def test_a_check_ends_at_its_own_time_out():
    @exercise(lab="toy", title="Slow", timeout=1)
    def slow(answer):
        for _ in range(100):
            run(answer)

    def answer():
        time.sleep(0.6)
        return 1

    import time

    assert "not finished" in said(slow(answer))


def test_a_check_that_stumbles_does_not_stop_the_notebook():
    @exercise(lab="toy", title="Stumbles")
    def stumbles(answer):
        return run(answer)["missing"]

    assert "the check could not make sense of the answer (KeyError: 'missing')" in said(stumbles(lambda: {"a": 1}))

    @exercise(lab="toy", title="Stumbles in the rank")
    def stumbles_inside(answer):
        run(check.use_shape, answer)

    text = said(stumbles_inside(lambda: 3))
    assert "the check could not use what your function gave it (AttributeError" in text


def test_an_answer_cannot_be_called_outside_a_rank():
    @exercise(lab="toy", title="Careless")
    def careless(answer):
        return answer()

    verdict = careless(lambda: pytest.fail("ran in the notebook's kernel"))
    assert "runs in rank processes only" in said(verdict)


def test_classes_are_answers_too():
    class Doubler:
        def __init__(self):
            self.by = world_size + 1  # noqa: F821

        def __call__(self, x):
            return self.by * x

    assert run(_make_and_call, Answer.of(Doubler, "Doubler"), 4) == 8


def test_a_method_that_fails_speaks_for_its_class():
    class Doubler:
        def __call__(self, x):
            if x < 0:
                raise NotImplementedError
            return 2 / x

    with pytest.raises(NotStarted):
        run(_make_and_call, Answer.of(Doubler, "Doubler"), -1)
    with pytest.raises(
        Wrong, match=r"^Doubler raised ZeroDivisionError: division by zero, in line \d+: `return 2 / x`"
    ):
        run(_make_and_call, Answer.of(Doubler, "Doubler"), 0)


def _make_and_call(maker, x):
    assert isinstance(maker, OpenAnswer)
    return maker()(x)


# ---------------------------------------------------------------- what answers print
def test_what_an_answer_prints_stands_beside_the_verdict():
    def add(a, b):
        print("adding", a, "and", b)
        return a + b if a != 3 else 0

    told = ["printed:", "    adding 1 and 2", "    adding 3 and 4", "    adding -1 and 1"]
    assert said(check.add(add)).splitlines()[1:] == told


def test_what_ranks_print_stands_there_with_their_numbers_and_once_where_it_is_the_same():
    def alike(tensor):
        print(tensor.shape)
        raise ValueError("no")

    def different(tensor):
        print("here", tensor.item())
        raise ValueError("no")

    lines = said(check.mean_over_ranks(alike)).splitlines()
    assert lines[-2:] == ["printed on ranks 0, 1:", "    torch.Size([1])"]
    lines = said(check.mean_over_ranks(different)).splitlines()
    assert lines[-4:] == ["printed on rank 0:", "    here 1.0", "printed on rank 1:", "    here 2.0"]


def test_of_many_lines_the_first_are_shown():
    def add(a, b):
        for i in range(100_000):
            print(i, "x" * 1000)
        return a + b

    lines = said(check.add(add)).splitlines()
    assert lines[0] == "✓ right: cases: 3" and lines[2].startswith("    0 xxx") and len(lines[2]) < 300
    assert lines[-2].startswith("    19 x") and lines[-1] == "    … (299,980 more lines)"
