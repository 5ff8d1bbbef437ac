"""The plans for teachers add up: minutes are those that lectures and exercises promise."""

from __future__ import annotations

import re

import pytest

from course import outline

PAGE = (outline.ROOT / "docs/teaching.md").read_text(encoding="utf-8")
PLANS = dict(re.findall(r"^### (.+ (?:days|weeks))\n\n((?:\|.*\n)+)", PAGE, re.MULTILINE))
LECTURE = re.compile(r"\[(\d\d)\]\(\.\./notebooks/\1_([a-z0-9_]+)\.ipynb\)")
GRADED = re.compile(r"\[(\d\d)\]\(\.\./labs/\1_([a-z0-9_]+)\.ipynb\): ([\d, ]+)")
MINUTES = {one.slug: one.minutes for one in outline.lectures()}


def exercises(slug: str) -> list[int]:
    """The minutes of a lab's exercises, in their order."""
    return [int(one) for one in outline.IN_LAB.findall(outline.notebook(slug, "solutions").read_text(encoding="utf-8"))]


def rows(plan: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in PLANS[plan].splitlines()[2:]]


def test_there_are_three_plans_and_the_longest_has_every_lecture() -> None:
    assert [(name, len(rows(name)) - 1) for name in PLANS] == [
        ("One week: five days", 5),
        ("Five weeks", 5),
        ("Twelve weeks", 12),
    ]
    assert [slug for _, slug in LECTURE.findall(PLANS["Twelve weeks"])] == outline.slugs()


@pytest.mark.parametrize("plan", PLANS)
def test_minutes_are_those_of_the_lectures_and_of_the_exercises(plan: str) -> None:
    *weeks, together = rows(plan)
    for _, lectures, minutes, graded, graded_minutes, question in weeks:
        taught = [slug for _, slug in LECTURE.findall(lectures)]
        assert int(minutes) == sum(MINUTES[slug] for slug in taught), lectures
        chosen = [(slug, [int(one) for one in numbers.split(",")]) for _, slug, numbers in GRADED.findall(graded)]
        assert int(graded_minutes) == sum(exercises(slug)[one - 1] for slug, ones in chosen for one in ones), graded
        assert {slug for slug, _ in chosen} <= set(taught) and question.endswith("?")
    assert [int(together[2]), int(together[4])] == [sum(int(week[i]) for week in weeks) for i in (2, 4)]
