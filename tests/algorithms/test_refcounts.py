"""The reference count without a lock: every order of the steps, and the program that looks at interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from course.notebooks import ROOT
from lessons.algorithms import refcounts


def test_there_are_twenty_orders_and_each_thread_makes_three_steps() -> None:
    orders = refcounts.orders()
    assert len(orders) == len(set(orders)) == 20
    assert all(sorted(order) == list("AAABBB") for order in orders)


def test_only_the_two_orders_without_mixing_are_right() -> None:
    outcomes = {order: refcounts.run(order).outcome for order in refcounts.orders()}
    assert Counter(outcomes.values()) == {refcounts.RIGHT: 2, refcounts.LEAK: 9, refcounts.FREED: 9}
    assert [order for order, outcome in outcomes.items() if outcome == refcounts.RIGHT] == ["AAABBB", "BBBAAA"]


def test_the_picture_tells_its_story_in_words_and_hides_what_comes_later() -> None:
    played = refcounts.run("ABABAB")
    whole, half = refcounts.picture(played), refcounts.picture(played, 3)
    assert "Freed while referenced" in whole.alt and "8. A drops a name" in whole.alt
    assert "Freed" not in half.alt and "4." not in half.alt


def test_the_program_about_interpreters_answers_in_json() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "gil_facts.py"), "--quick"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert found["gil"] is gil and found["version"] == sys.version.split()[0]
    assert found["immortal"] == (sys.version_info >= (3, 12))
    assert found["lost"]["n += int(1)"]["lost"] > 0, "an update is lost within the bound, on every interpreter"
    assert found["threads"] > 0
