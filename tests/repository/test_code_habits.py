"""Code knows lectures by their slugs, and its comments point to nothing outside the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course import outline

ROOT = outline.ROOT
FOLDERS = ("utils", "simgpu", "checks", "lessons", "course", "tests", "scripts", "benchmarks")
SUFFIXES = (".py", ".sh", ".sbatch", ".cfg")
FILES = ("Makefile", "pyproject.toml", ".ci/run", ".devcontainer/devcontainer.json")
NOT_YET: tuple[str, ...] = ()
"""Folders that are still to be mended."""
ABOUT_NUMBERS = ("tests/course/test_renumber.py",)

NUMBERS = "|".join(f"{number:02d}" for number in range(len(outline.slugs())))
BEHIND_THE_FIRST = "|".join(slug for slug in outline.slugs() if slug != outline.FIRST)
NUMBERED = re.compile(
    rf"\b(?:lecture|lab|solution|notebook)s?[ -](?:{NUMBERS})\b|(?<!\w)\d\d_(?:{BEHIND_THE_FIRST})(?!\w)", re.IGNORECASE
)
OUTSIDE = re.compile(r"\bof the (?:design)\b|\bDESIGN\.md|\bcontract \d", re.IGNORECASE)


def _code() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    found += [ROOT / name for name in FILES if (ROOT / name).exists()]
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith((*NOT_YET, *ABOUT_NUMBERS))]


def _found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _code()
        if (match := pattern.search(path.read_text(encoding="utf-8")))
    ]


def test_code_knows_lectures_and_labs_by_their_slugs() -> None:
    assert _found(NUMBERED) == [], "a number changes when a lecture is inserted: name the lecture, or its slug"


def test_code_points_to_nothing_outside_the_repository() -> None:
    assert _found(OUTSIDE) == []


@pytest.mark.parametrize("number", [0, len(outline.slugs()) - 1])
def test_a_number_in_code_is_found(number: int) -> None:
    slug = outline.slugs()[-1]
    for text in (f"See lecture {number:02d}.", f"Labs {number:02d} to", f'"{number:02d}_{slug}.ipynb"'):
        assert NUMBERED.search(text), text
    for text in ("lecture 420", "lab 42", "see lectures", f"{number:02d}_{outline.FIRST}", f"1{number:02d}_{slug}"):
        assert not NUMBERED.search(text), text
    assert OUTSIDE.search("as in contract " + "1 of the " + "design")
