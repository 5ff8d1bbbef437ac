"""The budget of seconds: what tests and notebooks take together, as `make durations` has stored it."""

from __future__ import annotations

import re

from dealing import CI, MAKE_TEST, ROOT, seconds_of_ci, seconds_of_make_test, stored

MEND = "a new test names what goes for it: make another quicker, or `nightly` (and run `make durations`)"


def test_make_test_keeps_to_its_budget() -> None:
    assert seconds_of_make_test() <= MAKE_TEST, MEND


def test_ci_keeps_to_its_budget() -> None:
    assert seconds_of_ci() <= CI, MEND


def test_every_file_of_tests_and_every_notebook_was_measured() -> None:
    measured = {re.split(r"::| \(", name)[0] for name in stored()}
    notebooks = [path for folder in ("notebooks", "solutions") for path in (ROOT / folder).glob("*.ipynb")]
    there = {path.relative_to(ROOT).as_posix() for path in (*(ROOT / "tests").rglob("test_*.py"), *notebooks)}
    assert there - measured == set(), "run `make durations` on a quiet machine"
    assert measured - there == set(), "files that are gone"
