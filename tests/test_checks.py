"""Checks: whatever a learner's function does, the notebook gets one clear sentence and goes on."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import cloudpickle
import labs_support as support
import pytest
import toy_checks as check

from utils.checks import (
    NotStarted,
    Opaque,
    Record,
    Wrong,
    exercise,
    how_far,
    progress,
    record_collectives,
    run,
    run_cases,
)
from utils.checks import memory as memory_module
from utils.checks.answers import Answer
from utils.checks.framework import exercises_in
from utils.checks.inside import OpenAnswer
from utils.checks.plain import from_bytes, to_bytes

TOY = exercises_in(check)
lock = threading.Lock()
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as if these functions stood in a notebook


@pytest.fixture(autouse=True)
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    return path


def said(verdict) -> str:
    """The verdict as a learner reads it; both forms must say the same."""
    text = repr(verdict)
    plain = verdict._repr_html_().replace("&#x27;", "'").replace("&quot;", '"').replace("&lt;", "<")
    assert text.splitlines()[0].split(": ", 1)[-1].replace(">", "&gt;").replace("&", "") in plain.replace("&", "")
    return text


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
    assert said(verdict) == "✗ wrong: Did you add the numbers?: 2.0 times too large (measured: 6; expected: 3)"
    assert not verdict


def test_several_functions_are_judged_together():
    assert check.there_and_back(lambda x: x[::-1], lambda x: x[::-1])
    assert "entry 0 is" in said(check.there_and_back(lambda x: x[::-1], lambda x: x[:]))


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


def forgets_to_return(a, b):
    a + b


def returns_a_generator(a, b):
    yield a + b


def returns_a_lock(a, b):
    return [threading.Lock()]


def replaces_builtins(a, b):
    import builtins

    builtins.isinstance = builtins.len = builtins.setattr = lambda *_: True
    return a + b


def replaces_a_torch_function(a, b):
    import torch

    torch.equal = lambda *_: True
    return a + b


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
        (endless, "add(1, 2) was not finished after 4 s: is there a loop that never ends?"),
        (leaves_the_program, "add(1, 2) calls sys.exit(), in line {line}: `sys.exit()`, which ends the whole"),
        (ends_the_process, "add(1, 2) ended its process (exit code 0)."),
        (reads_address_zero, "add(1, 2) ended its process (killed by SIGSEGV)."),
        (kills_itself, "add(1, 2) ended its process (killed by SIGKILL"),
        (interrupts_itself, "add(1, 2) raised KeyboardInterrupt, in line {line}: `raise KeyboardInterrupt`."),
        (divides_by_zero, "add(1, 2) raised ZeroDivisionError: division by zero, in line {line}: `return a / 0`."),
        (forgets_to_return, "add(1, 2) returned None: is the `return` missing?"),
        (returns_a_generator, "add(1, 2) returned a generator, which cannot leave the process that made it"),
        (returns_a_lock, "add(1, 2) returned a list with a lock, which cannot leave"),
        (replaces_builtins, "replaces the builtin isinstance for the whole process"),
        (replaces_a_torch_function, "replaces torch.equal for the whole process"),
        (calls_itself, "add(1, 2) raised RecursionError: maximum recursion depth exceeded"),
        (raises_from_torch, "add(1, 2) raised NotImplementedError: Cannot copy out of meta tensor"),
        (needs_a_lock, "add uses something from the notebook that cannot be sent to another process"),
        (3, "give the check the function add itself, without calling it"),
        (None, "give the check the function add itself, without calling it"),
        (lambda a: a, "add(1, 2) raised TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_every_fault_ends_in_one_sentence(answer, sentence):
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


def test_arguments_that_change_are_noticed_unless_they_may():
    def double(numbers):
        numbers.append(1)
        return 2 * numbers

    answer = Answer.of(double, "double")
    with pytest.raises(Wrong, match=r"double\(\[1\]\) changes its first argument; .* \(now: \[1, 1\]\)"):
        run(answer, [1])
    mine = [1]
    assert run(answer, mine, changes_arguments=True) == [1, 1, 1, 1]
    assert mine == [1], "the check's own list is out of reach"


def test_a_rank_that_never_comes_ends_in_the_table_of_waiting_ranks():
    def mean_over_ranks(tensor):
        if rank == 1:  # noqa: F821
            return tensor
        dist.all_reduce(tensor)  # noqa: F821
        return tensor

    text = said(check.mean_over_ranks(mean_over_ranks))
    assert "mean_over_ranks was not finished after 4 s: does a rank wait for another that never comes?" in text
    assert "waiting in all_reduce" in text


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
    @exercise(lab="98_toy", title="Slow", timeout=1)
    def slow(answer):
        for _ in range(100):
            run(answer)

    def answer():
        time.sleep(0.6)
        return 1

    import time

    assert "not finished" in said(slow(answer))


def test_a_check_that_stumbles_does_not_stop_the_notebook():
    @exercise(lab="98_toy", title="Stumbles")
    def stumbles(answer):
        return run(answer)["missing"]

    assert "the check could not make sense of the answer (KeyError: 'missing')" in said(stumbles(lambda: {"a": 1}))

    @exercise(lab="98_toy", title="Stumbles in the rank")
    def stumbles_inside(answer):
        run(check.use_shape, answer)

    text = said(stumbles_inside(lambda: 3))
    assert "the check could not use what your function gave it (AttributeError" in text


def test_an_answer_cannot_be_called_outside_a_rank():
    @exercise(lab="98_toy", title="Careless")
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


def test_many_cases_run_in_one_launch_and_the_failing_one_is_named():
    def f(x):
        return [os.getpid(), 12 // x]

    answer = Answer.of(f, "f")
    results = run_cases(answer, [(1,), (2,), (3,)], ranks=2)
    assert [[value for _, value in per_rank] for per_rank in results] == [[12, 12], [6, 6], [4, 4]]
    assert len({pid for per_rank in results for pid, _ in per_rank}) == 2
    with pytest.raises(Wrong, match=r"^f\(0\) raised ZeroDivisionError"):
        run_cases(answer, [(1,), (0,)])


# ---------------------------------------------------------------- values on their way back
def test_values_come_back_as_plain_data():
    import numpy
    import torch

    value = {
        "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "empty": torch.empty(0, 2),
        "array": numpy.arange(3),
        "scalar": numpy.float64(0.5),
        "tuple": (1, "a", None, {2, 3}, range(3), 1 + 2j),
        "shape": torch.Size([1, 2]),
        "dtype": torch.float32,
    }
    back = from_bytes(to_bytes(value))
    assert torch.equal(back["tensor"], value["tensor"]) and back["tensor"].dtype == torch.bfloat16
    assert back["empty"].shape == (0, 2) and back["array"].tolist() == [0, 1, 2]
    assert back["scalar"] == 0.5 and type(back["scalar"]) is float
    assert back["tuple"] == value["tuple"] and back["shape"] == (1, 2) and back["dtype"] == "torch.float32"
    assert from_bytes(to_bytes([lock])) == [Opaque("lock", repr(lock))]


def test_a_value_cannot_bring_code_along():
    import pickle

    class Nasty:
        def __reduce__(self):
            return os.system, ("exit 1",)

    with pytest.raises(pickle.UnpicklingError, match="not plain data"):
        from_bytes(pickle.dumps(Nasty()))
    assert from_bytes(to_bytes(Nasty())).kind == "Nasty"


# ---------------------------------------------------------------- how far off
@pytest.mark.parametrize(
    ("measured", "expected", "tolerance", "phrase"),
    [
        (1.04, 1.0, 0.05, None),
        (1.06, 1.0, 0.05, "6 % too large"),
        (2, 4, 0, "2.0 times too small"),
        (3000, 1, 0, "3,000 times too large"),
        (-1, 1, 0, "-1 instead of 1"),
        (float("nan"), 1, 0.5, "not a number (nan)"),
        (True, 1, 0, "True instead of 1"),
        ("a", 1, 0, "not a number but str 'a'"),
        ([1, 2], (1, 2), 0, None),
        ([1, 2, 3], [1, 2], 0, "3 entries instead of 2"),
        ([1, [2, 4]], [1, [2, 3]], 0, "entry 1 is entry 1 is 33 % too large"),
        ({"a": 1}, {"a": 1, "b": 2}, 0, "'b' is missing"),
        ({"a": 1, "b": 2}, {"a": 1}, 0, "'b' is too much"),
        (None, "x", 0, "None instead of 'x'"),
        (7, None, 0, "7 instead of None"),
    ],
)
def test_how_far_off_a_value_is(measured, expected, tolerance, phrase):
    assert how_far(measured, expected, relative=tolerance) == phrase


def test_how_far_off_a_tensor_is():
    import torch

    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert how_far(expected.clone(), expected) is None
    assert how_far(expected * 1.01, expected, relative=0.02) is None
    assert how_far(expected[:1], expected) == "of shape [1, 2] instead of [2, 2]"
    assert how_far(expected.double(), expected) == "of type torch.float64 instead of torch.float32"
    assert how_far([1.0], expected) == "not a tensor but list [1.0]"
    off = expected.clone()
    off[1, 0] = 7
    assert how_far(off, expected) == "different in 1 of 4 elements, most in element [1, 0]: 7 instead of 3"
    off[0, 1] = float("nan")
    assert how_far(off, expected, absolute=5) == (
        "different in 1 of 4 elements, most in element [0, 1]: nan instead of 2"
    )


# ---------------------------------------------------------------- collectives
def test_the_recorder_sees_every_kind_of_communication():
    calls = [Record.from_plain(per_rank) for per_rank in run(_talk, ranks=4, timeout=30)]
    assert calls[0].names == [
        *("all_reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"),
        *("send", "recv", "all_gather", "all_gather", "all_gather", "broadcast", "broadcast"),  # object, then DDP
        *("all_reduce", "all_reduce"),
    ]
    assert calls[1].names == calls[3].names == [*calls[0].names[:2], "all_reduce", *calls[0].names[2:]]
    first, second, in_group, root = calls[1].calls[:4]
    assert (first.bytes, first.dtype, first.asynchronous, first.ranks) == (16, "float32", False, (0, 1, 2, 3))
    assert (second.bytes, second.dtype, second.asynchronous) == (32, "float64", True)
    assert in_group.ranks == (1, 3)
    assert root.peer == 2
    (send,), (receive,) = calls[3].of("send"), calls[3].of("recv")
    assert (send.peer, receive.peer, send.bytes, send.asynchronous) == (0, 2, 16, None)
    assert calls[3].sent_bytes == 16
    assert calls[0].of("reduce_scatter")[0].bytes == 64


def _talk():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([1, 3])
    model = torch.nn.Linear(4, 4)

    def ones(n=4, dtype=torch.float32):
        return torch.ones(n, dtype=dtype)

    with record_collectives() as record:
        dist.all_reduce(ones())
        dist.all_reduce(ones(dtype=torch.float64), async_op=True).wait()
        if rank in (1, 3):
            dist.all_reduce(ones(), group=group)
        dist.broadcast(ones(), 2)
        dist.all_gather([ones() for _ in range(size)], ones())
        dist.reduce_scatter(ones(), [ones() for _ in range(size)])
        dist.all_to_all_single(ones(), ones())
        dist.barrier()
        request = dist.isend(ones(), (rank + 1) % size)
        dist.recv(ones(), (rank - 1) % size)
        request.wait()
        dist.all_gather_object([None] * size, "text")
        replica = DistributedDataParallel(model)
        replica(ones()).sum().backward()
        thread = threading.Thread(target=lambda: dist.all_reduce(ones()))
        thread.start()
        thread.join()
    dist.all_reduce(ones())  # not recorded any more
    return record.plain()


# ---------------------------------------------------------------- progress
def test_nothing_tried_is_all_not_started():
    overview = progress(TOY)
    assert repr(overview).splitlines() == [
        "98_toy  0/3",
        "  ○ Add two numbers  ●○○    5 min",
        "  ○ Mean over ranks  ●●○   10 min",
        "  ○ There and back   ●●●   15 min",
        "0 of 3 exercises done, about 30 minutes to go",
    ]
    assert "○ not started" in overview._repr_html_() and "0 of 3 exercises done" in overview._repr_html_()


def test_results_are_remembered_and_a_fresh_lab_erases_nothing(progress_file):
    def unwritten(a, b):
        raise NotImplementedError

    check.add(lambda a, b: a + b)
    check.there_and_back(lambda x: x, lambda x: x[1:])
    check.add(unwritten)
    signs = [line.split()[0] for line in repr(progress(TOY)).splitlines()[1:4]]
    assert signs == ["✓", "○", "✗"]
    assert "1 of 3 exercises done" in repr(progress(TOY))
    assert json.loads(progress_file.read_text())["results"] == {"98_toy/add": "right", "98_toy/there_and_back": "wrong"}
    assert [path.name for path in progress_file.parent.iterdir()] == [progress_file.name]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"results": 3}', '{"results": {"98_toy/add": "strange", "gone/x": 1}}']
)
def test_a_broken_or_outdated_file_is_no_trouble(progress_file, content):
    progress_file.write_text(content)
    assert "0 of 3" in repr(progress(TOY))
    check.add(lambda a, b: a + b)
    assert "1 of 3" in repr(progress(TOY))


def test_exercises_that_changed_or_vanished_are_no_trouble():
    check.add(lambda a, b: a + b)
    assert "1 of 1" in repr(progress(TOY[:1]))
    assert "0 of 2" in repr(progress(TOY[1:]))


def test_two_notebooks_may_write_at_once(progress_file):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: memory_module.remember("98_toy", f"e{number}", "right"), range(40)))
    assert len(memory_module.recall()) == 40


def test_a_folder_that_cannot_be_written_is_no_trouble(monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "/dev/null/progress.json")
    assert check.add(lambda a, b: a + b)
    assert "0 of 3" in repr(progress(TOY))


def test_running_the_solutions_counts_for_nobody(monkeypatch, tmp_path):
    (tmp_path / "solutions").mkdir()
    monkeypatch.setattr(memory_module, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path / "solutions")
    check.add(lambda a, b: a + b)
    assert memory_module.recall() == {}


def test_the_overview_of_the_course_works_in_any_state():
    assert "exercises done" in repr(progress())


# ---------------------------------------------------------------- the test of the answers itself
def answer_folder(root: Path, wrong: str, right: str, count: int = 5) -> Path:
    folder = root / "98_toy" / "add"
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"wrong_{number}.py").write_text(wrong)
    (folder / "right_sum.py").write_text(right)
    return root


def test_answer_files_are_judged_by_the_sentence_meant_for_them(tmp_path):
    wrong = 'REJECTED_WITH = "Did you add"\ndef add(a, b):\n    return a - b\n'
    folder = answer_folder(tmp_path, wrong, "def add(a, b):\n    return sum((a, b))\n")
    support.assert_enough_answers(folder, check.add)
    support.assert_rejected(support.answer_files(folder, check.add, "wrong")[0], check.add)
    support.assert_accepted(support.answer_files(folder, check.add, "right")[0], check.add)
    assert support.strangers(folder, TOY) == []


def test_answer_files_that_prove_nothing_fail_the_test(tmp_path):
    folder = answer_folder(tmp_path, "REJECTED_WITH = 'Other'\ndef add(a, b): return 7", "def ad(a, b): return 7", 2)
    wrong, right = (support.answer_files(folder, check.add, kind)[0] for kind in ("wrong", "right"))
    with pytest.raises(AssertionError, match="2 of at least 5"):
        support.assert_enough_answers(folder, check.add)
    with pytest.raises(AssertionError, match="rejected with another sentence"):
        support.assert_rejected(wrong, check.add)
    with pytest.raises(AssertionError, match="does not define add"):
        support.assert_accepted(right, check.add)
    right.write_text("def add(a, b): return 7")
    with pytest.raises(AssertionError, match="is not accepted"):
        support.assert_accepted(right, check.add)
    (folder / "98_toy" / "sub").mkdir()
    (folder / "98_toy" / "sub" / "wrong_1.py").touch()
    assert [path.parent.name for path in support.strangers(folder, TOY)] == ["sub"]


def test_a_lab_is_named_by_number_and_slug():
    with pytest.raises(ValueError, match="named by number and slug"):
        exercise(lab="toy", title="x")
    with pytest.raises(ValueError, match="difficulty is 1, 2 or 3"):
        exercise(lab="98_toy", title="x", difficulty=4)


def test_importing_the_checks_imports_nothing_heavy():
    import subprocess

    code = (
        "import sys, utils.checks; print([m for m in ('torch', 'numpy', 'cloudpickle', 'IPython') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_exercises_of_a_module_are_found_in_order():
    assert [item.name for item in TOY] == ["add", "mean_over_ranks", "there_and_back"]
    assert exercises_in(ModuleType("empty")) == []
