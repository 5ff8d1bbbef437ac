"""Exercises: how they are defined and found, and how known answers are judged."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import labs_support as support
import pytest
import toy_checks as check

from checks import Wrong, exercise, passed
from checks.engine import Reference
from checks.engine.exercises import all_exercises, exercises_in

TOY = exercises_in(check)


ANSWERS = """from known_answers import right, wrong


def add(a, b):
    return a + b


right("a sum", {"a + b": "sum((a, b))"})
right("the other way", {"a + b": "b + a"})
right("a difference", {"a + b": "a - -b"})
wrong("minus", "Did you add", {"+": "-"})
wrong("times", "Did you add", {"+": "*"})
wrong("a power", "Did you add", {"+": "**"})
wrong("bits", "Did you add", {"+": "|"})
wrong("another sentence", "Did you multiply", {"+": "-"})
wrong("not wrong", "Did you add", {"a + b": "b + a"})
"""


def _folder(root: Path, text: str) -> Path:
    (root / "toy").mkdir()
    (root / "toy" / "add.py").write_text(text)
    return root


def test_answers_are_judged_by_the_sentence_meant_for_them(tmp_path):
    folder = _folder(tmp_path, ANSWERS)
    support.assert_enough_answers(folder, check.add)
    known = {one.name: one for one in support.answers_in(folder, check.add)}
    assert [one.kind for one in known.values()].count("right") == 4
    for name in ("a sum", "minus"):
        support.assert_judged(known[name], check.add)
    assert support.strangers(folder, TOY) == []


def test_answers_that_prove_nothing_fail_the_test(tmp_path):
    folder = _folder(tmp_path, ANSWERS)
    known = {one.name: one for one in support.answers_in(folder, check.add)}
    with pytest.raises(AssertionError, match="refused with another sentence"):
        support.assert_judged(known["another sentence"], check.add)
    with pytest.raises(AssertionError, match="is wrong: ✓ right"):
        support.assert_judged(known["not wrong"], check.add)
    (folder / "toy" / "add.py").write_text(ANSWERS.partition('wrong("minus')[0])
    with pytest.raises(AssertionError, match=r"add\.py"):
        support.assert_enough_answers(folder, check.add)
    (folder / "toy" / "sub.py").touch()
    assert [path.name for path in support.strangers(folder, TOY)] == ["sub.py"]


def test_a_lab_is_named_by_its_slug():
    with pytest.raises(ValueError, match="named by its slug"):
        exercise(lab="98_toy", title="x")
    assert exercise(title="x")(_judge_of_a_module).lab == "test_checks_exercises"
    with pytest.raises(ValueError, match="difficulty is 1, 2 or 3"):
        exercise(lab="toy", title="x", difficulty=4)


def _judge_of_a_module(answer):
    return None


def test_importing_the_checks_imports_nothing_heavy():
    import subprocess

    code = "import sys, checks; print([m for m in ('torch', 'numpy', 'cloudpickle', 'IPython') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_exercises_of_a_module_are_found_in_order():
    assert [item.name for item in TOY] == ["add", "mean_over_ranks", "there_and_back"]
    assert exercises_in(ModuleType("empty")) == []


# ---------------------------------------------------------------- points
def test_an_exercise_has_a_point_for_each_dot_or_what_it_declares():
    def judge(answer):
        passed("one half")
        raise Wrong("the other half is wrong")

    plain = exercise(lab="toy", title="Plain", difficulty=2)(judge)
    parts = exercise(lab="toy", title="In parts", parts={"one half": 1, "the other": 3})(judge)
    assert (plain.points, plain.earned(plain.verdict(len))) == (2, 0)
    assert (parts.points, parts.earned(parts.verdict(len))) == (4, 1)
    assert parts.verdict(len).text == "the other half is wrong. Right so far: one half."
    with pytest.raises(ValueError, match="3 points, but the parts have 4"):
        exercise(lab="toy", title="Both", points=3, parts={"one half": 4})


def test_checks_count_parts_that_are_declared():
    for item in all_exercises():
        counted = re.findall(r'\bpassed\("([^"]+)"\)', inspect.getsource(item.play or item.judge))
        assert set(counted) <= set(item.parts), item.name


def test_an_exercise_with_cases_is_played_beside_the_official_solution():
    half = Reference("toy", "half", text="def half(x):\n    return x // 2\n")

    @exercise(half, [{"x": 4}, {"x": -3}], title="Half", lab="toy")
    def halves(case, function):
        """Judge ``half(x)``."""
        return {"the half": function(case["x"])}

    assert repr(halves) == "Half (●○○, 10 minutes, 1 point): check.halves(half)"
    assert halves.__doc__ == "Judge ``half(x)``."
    assert repr(halves.verdict(lambda x: x // 2)) == "✓ right: cases: 2"
    assert "the half: not what the exercise says (x -3" in halves.verdict(lambda x: int(x / 2)).text


def test_a_sentence_stays_a_sentence_whatever_an_answer_puts_into_it():
    def judge(answer):
        raise Wrong("k" * 30_000_000)

    assert len(exercise(lab="toy", title="Long")(judge).verdict(len).text) < 1_100
