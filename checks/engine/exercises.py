"""Exercises: how a learner's functions are judged, with what a learner and a grader need to know about it.

In a module of a lab's checks (of ``checks/labs/ddp_and_bucketing/``, say), what is done with the functions in one case:

    @exercise(OFFICIAL, CASES, title="Average the gradients", difficulty=2, minutes=15, ranks=(2, 3))
    def average_gradients(case, average):
        …
        return {"the gradients": gradients}

The lab's package has it in its list EXERCISES, and the lab calls ``check.average_gradients(average)``. Without cases,
the function judges by itself: it gets answers, and its parameters are called as what the learner writes; it returns
figures to show (a dict, a string or None) or raises ``Wrong``. Whatever else happens ends in a sentence too.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from checks.engine import printed
from checks.engine.answers import Answer
from checks.engine.processes import deadline
from checks.engine.verdicts import (
    HANDED_IN,
    NOT_JUDGED,
    NOT_STARTED,
    RIGHT,
    WRONG,
    NotStarted,
    Verdict,
    Wrong,
    figures_text,
)
from checks.memory import remember
from checks.points import counted, passed_parts
from course import outline
from lessons.launchers.extras import missing, sentence

if TYPE_CHECKING:
    from checks.engine.reference import Reference

#: When set, checks write the answers to this folder for the grader and judge nothing.
HAND_IN_TO = "COURSE_ANSWERS"
_SLUG = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab; call it with the learner's functions and it shows a verdict.

    Args:
        judge: the check's function; gets one ``Answer`` per parameter.
        lab: the lab's slug, "ddp_and_bucketing".
        name: what notebooks call it.
        parameters: the names of the functions that a learner writes for it.
        title: what people call it.
        difficulty: 1 to 3.
        minutes: how long a learner takes.
        timeout: seconds after which the whole check ends.
        needs: modules beyond the course's core that the check imports; `make frameworks` installs them.
        points: what a right answer is worth.
        parts: those of them that a wrong answer can earn, by part (see points.py).
        official: the solution and its mistakes, where the check is built from them (see reference.py).
        play: what is done with the functions in one case, where the exercise has cases.
    """

    judge: Callable[..., Any] = field(repr=False)
    lab: str
    name: str
    parameters: Sequence[str]
    title: str
    difficulty: int
    minutes: int
    timeout: float
    needs: tuple[str, ...]
    points: int
    parts: dict[str, int] = field(hash=False)
    official: Reference | None
    play: Callable[..., Any] | None = field(repr=False)

    @property
    def stars(self) -> str:
        return "●" * self.difficulty + "○" * (3 - self.difficulty)

    def __repr__(self) -> str:
        call = f"check.{self.name}({', '.join(self.parameters)})"
        return f"{self.title} ({self.stars}, {self.minutes} minutes, {counted(self.points)}): {call}"

    def earned(self, verdict: Verdict | None) -> int:
        """How many points a verdict gives."""
        if verdict is None or verdict.state == RIGHT:
            return self.points if verdict else 0
        return sum(self.parts[part] for part in verdict.passed if part in self.parts)

    def __call__(self, *functions: Any) -> Verdict:
        """Judge the learner's functions, remember the result for ``progress()``, return the verdict."""
        if folder := os.environ.get(HAND_IN_TO):
            return self._hand_in(Path(folder), functions)
        verdict = self.verdict(*functions)
        remember(self.lab, self.name, verdict.state)
        return verdict

    def verdict(self, *functions: Any) -> Verdict:
        """Judge functions, or answers that were sealed before, without remembering the result."""
        with passed_parts() as passed, printed.collected() as texts:
            verdict = self._verdict(functions).but(passed)
        return replace(verdict, printed=printed.told(texts))

    def _verdict(self, functions: tuple[Any, ...]) -> Verdict:
        try:
            answers = self._seal(functions)
            if lacking := missing(*self.needs):
                return Verdict(NOT_JUDGED, sentence(lacking))
            with deadline(self.timeout):
                figures = self.judge(*answers)
            return Verdict(RIGHT, figures_text(figures))
        except NotStarted:
            return Verdict(NOT_STARTED)
        except Wrong as wrong:
            return Verdict(WRONG, wrong.text, wrong.details)
        except Exception as error:
            # A check that stumbles over an answer is not the learner's fault alone, but must not stop their
            # notebook.
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return Verdict(WRONG, f"the check could not make sense of the answer ({what}).")

    def _seal(self, functions: tuple[Any, ...]) -> list[Answer]:
        names = self.parameters
        if len(functions) != len(names):
            needs = f"{len(names)} function{'s' if len(names) != 1 else ''}"
            raise Wrong(f"this check takes {needs}: check.{self.name}({', '.join(names)}).")
        pairs = zip(functions, names, strict=True)
        return [given if isinstance(given, Answer) else Answer.of(given, name) for given, name in pairs]

    def _hand_in(self, folder: Path, functions: tuple[Any, ...]) -> Verdict:
        record: dict[str, Any] = {"lab": self.lab, "exercise": self.name}
        try:
            record["answers"] = [answer.to_json() for answer in self._seal(functions)]
        except Wrong as wrong:
            record["refused"] = wrong.text
        try:
            number = len(list(folder.glob("*.json")))
            (folder / f"{number:04d}.json").write_text(json.dumps(record), encoding="utf-8")
        except OSError as error:
            return Verdict(WRONG, f"the answer could not be handed in ({error}).")
        return Verdict(HANDED_IN)


def exercise(  # noqa: PLR0913
    official: Reference | None = None,
    cases: Any = None,
    *,
    title: str,
    lab: str = "",
    difficulty: int = 1,
    minutes: int = 10,
    timeout: float | None = None,
    needs: tuple[str, ...] = (),
    points: int | None = None,
    parts: dict[str, int] | None = None,
    **judging: Any,
) -> Callable[[Callable[..., Any]], Exercise]:
    """Make an exercise of a function that plays one case, or, where there are no cases, of one that judges answers.

    Args:
        official: the solution that the check compares with; its mistakes are tried as the check's tests.
        cases: some, or how to draw one (see ``judge``).
        title: a few words for the overview.
        lab: the lab's slug; the package, or else the module, that defines the exercise, if not given.
        difficulty: 1, 2 or 3.
        minutes: how long a learner takes.
        timeout: seconds after which the check ends, whatever the answer does (300, if not given); with cases, seconds
            for each world that plays (60).
        needs: modules beyond the course's core that the check imports, ("ray",).
        points: what it is worth; one for each ● of the difficulty, if not given.
        parts: points for parts of it, which together are all its points; the check calls ``passed(part)``.
        judging: ``ranks`` and ``run`` of ``judge``.
    """
    if lab and not _SLUG.fullmatch(lab):
        raise ValueError(f"a lab is named by its slug, such as ddp_and_bucketing, not {lab!r}")
    if difficulty not in (1, 2, 3):
        raise ValueError(f"difficulty is 1, 2 or 3, not {difficulty!r}")
    whole = sum(parts.values()) if parts else points or difficulty
    if points not in (None, whole):
        raise ValueError(f"{points} points, but the parts have {whole} together")

    def make(function: Callable[..., Any]) -> Exercise:
        def beside_the_official(*answers: Answer) -> Any:
            from checks.engine.judging import judge

            assert official is not None
            return judge(official, function, cases, *answers, timeout=timeout or 60, **judging)

        name, plays = function.__name__, cases is not None
        if plays:
            function.__qualname__ = f"{name}.play"  # where a rank finds it, in place of the exercise
        made = Exercise(
            judge=beside_the_official if plays else function,
            lab=lab or _lab_of(function.__module__),
            name=name,
            parameters=official.names.split() if official and plays else list(inspect.signature(function).parameters),
            title=title,
            difficulty=difficulty,
            minutes=minutes,
            timeout=max(timeout or 0, 300) if plays else timeout or 300,
            needs=needs,
            points=whole,
            parts=parts or {},
            official=official,
            play=function if plays else None,
        )
        object.__setattr__(made, "__doc__", function.__doc__)  # for help() and Shift-Tab
        return made

    return make


def _lab_of(module: str) -> str:
    """checks.labs.LAB, or a module in it; of any other module its own name."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["checks", "labs"] else parts[-1]


def exercises_in(module: ModuleType) -> list[Exercise]:
    """The exercises of a lab's package (its list EXERCISES), or of a module, in the order in which they stand there."""
    things = vars(module).get("EXERCISES", vars(module).values())
    return [thing for thing in things if isinstance(thing, Exercise)]


def lab_modules() -> tuple[list[ModuleType], list[str]]:
    """The checks of every lab that has a solution, in the order of the course, and a sentence for each broken one."""
    import importlib

    modules, problems = [], []
    for slug in outline.slugs("solutions"):
        try:
            modules.append(importlib.import_module(f"checks.labs.{slug}"))
        except Exception as error:
            problems.append(f"checks/labs/{slug} cannot be imported ({type(error).__name__}: {error}).")
    return modules, problems


def all_exercises() -> list[Exercise]:
    """The exercises of every lab of the course, lab by lab."""
    modules, _ = lab_modules()
    return [exercise for module in modules for exercise in exercises_in(module)]
