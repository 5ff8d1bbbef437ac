"""Labs, solutions and checks fit each other, and every check tells right answers from wrong ones.

A new lab adds files only: its solution, its module of checks, its wrong and right answers (see labs_support.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import labs_support as support
import pytest
from kernel_support import Kernel
from known_answers import Known

from checks import exercise
from checks.engine.exercises import Exercise, all_exercises, lab_modules
from course import outline
from course.build import differences

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = support.ANSWERS
EXERCISES = all_exercises()
LABS = sorted({exercise.lab for exercise in EXERCISES} | set(outline.slugs("solutions")))

each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda item: f"{item.lab}-{item.name}")
each_lab = pytest.mark.parametrize("lab", LABS)


ALL = bool(os.environ.get("COURSE_ALL_ANSWERS"))
"""`make answers`, in a workflow each night. Else two answers a lab: the first right one to its first exercise that is
written differently, and the first wrong one to its last. (nbval judges the official ones, in executed solutions.)"""


def _judged(lab: str, kind: str) -> list[tuple[Known, Exercise]]:
    """Answers of a kind to a lab's exercises: all, or the one that is judged at each push."""
    exercises = [exercise for exercise in EXERCISES if exercise.lab == lab]
    if not ALL:
        exercises = exercises[:1] if kind == "right" else exercises[-1:]
    known = [(answer, exercise) for exercise in exercises for answer in support.answers_in(ANSWERS, exercise)]
    known = [(answer, exercise) for answer, exercise in known if answer.kind == kind]
    return known if ALL else [pair for pair in known if pair[0].name != "right"][:1]


def each_known_answer(kind: str) -> pytest.MarkDecorator:
    pairs = [pair for lab in LABS for pair in _judged(lab, kind)]
    ids = [f"{exercise.lab}-{exercise.name}-{known.name}" for known, exercise in pairs]
    return pytest.mark.parametrize(("known", "exercise"), pairs, ids=ids)


@pytest.fixture(autouse=True)
def _progress_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))


def test_labs_are_what_the_solutions_give():
    out_of_date = differences(ROOT / "solutions", ROOT / "labs")
    assert not out_of_date, "run `make labs`"


def test_every_module_of_checks_can_be_imported():
    assert lab_modules()[1] == []


@each_lab
def test_no_module_of_a_labs_checks_is_called_as_an_exercise(lab):
    """An import of the module would put it in the exercise's place."""
    modules = {path.stem for path in (ROOT / "checks" / "labs" / lab).glob("*.py")}
    assert modules & {exercise.name for exercise in EXERCISES if exercise.lab == lab} == set()


def test_every_answer_file_belongs_to_an_exercise():
    assert support.strangers(ANSWERS, EXERCISES) == []


@each_exercise
def test_an_exercise_has_enough_wrong_and_right_answers(exercise):
    support.assert_enough_answers(ANSWERS, exercise)


@each_known_answer("wrong")
def test_a_known_mistake_is_refused_with_the_sentence_meant_for_it(known, exercise):
    support.assert_judged(known, exercise)


@each_known_answer("right")
def test_a_known_answer_is_accepted_however_it_is_written(known, exercise):
    support.assert_judged(known, exercise)


@each_lab
def test_the_solution_shows_that_every_check_passes(lab):
    shown = support.shown_verdicts(outline.notebook(lab, "solutions"))
    assert set(shown) == {exercise.name for exercise in EXERCISES if exercise.lab == lab}
    assert {name: text for name, text in shown.items() if not text.startswith("✓ right")} == {}


WITH_MORE = {lecture.slug for lecture in outline.lectures() if lecture.needs}
BY_HAND = [item for item in EXERCISES if item.lab in WITH_MORE and not item.needs]


@pytest.mark.parametrize("exercise", BY_HAND, ids=lambda item: f"{item.lab}-{item.name}")
def test_a_solution_that_only_frameworks_execute_shows_todays_verdict(exercise):
    """Of exercises that need none of them."""
    [right] = [one for one in support.answers_in(ANSWERS, exercise) if one.name == "right"]
    verdict = exercise.verdict(*(right.functions[name] for name in exercise.parameters))
    assert support.shown_verdicts(outline.notebook(exercise.lab, "solutions"))[exercise.name] == repr(verdict)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One for all labs, in one process (see dealing.py): each would take 4 s of CPU to import torch, twice."""
    with Kernel(COURSE_PROGRESS=str(tmp_path_factory.mktemp("learner") / "progress.json")) as kernel:
        yield kernel


@each_lab
def test_the_unsolved_lab_gives_its_checks_what_is_not_written_yet(lab, monkeypatch):
    """In this process, and no check judges: the next test proves each night what they say."""
    given = support.given_to_checks(outline.notebook(lab, "labs"), monkeypatch)
    assert given == {exercise.name: "not written" for exercise in EXERCISES if exercise.lab == lab}


@pytest.mark.nightly
@each_lab
def test_the_unsolved_lab_runs_and_every_exercise_is_not_started(lab, kernel):
    """Also that no cell fails, unless it is meant to. So nbval need not run labs as well."""
    shown = support.shown_verdicts(support.run_notebook(outline.notebook(lab, "labs"), kernel))
    assert shown == {exercise.name: "○ not started" for exercise in EXERCISES if exercise.lab == lab}


def test_an_exercise_that_needs_more_than_the_core_says_what_to_install():
    def judge(answer):
        raise AssertionError("it was judged all the same")

    one = exercise(lab="toy", title="Toy", needs=("no_such_module", "ray"))(judge)
    verdict = one.verdict(lambda: 1)
    assert not verdict and verdict.state == "not judged"
    assert "no_such_module" in verdict.text and "`make frameworks`" in verdict.text
