"""How tests and notebooks are dealt out to processes: in groups, the longest first, so that all end together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "durations.json"
"""Seconds of each group and mark, which `make durations` writes."""
MARKS = ("nightly", "frameworks", "extras")
"""Tests with one of these are run by another target than `make test`: the first of them decides which."""
WORKERS = 4
"""Processes on two cores (JOBS in the Makefile)."""
MAKE_TEST, CI = 12 * 60, 40 * 60
"""Seconds that `make test`, once it is set up, and the whole of .ci/run may take on two quiet cores.

(12 minutes are the aim: what is stored was measured beside other work. These only fall.)
"""
LINT, INSTALL = 30, 300
"""Seconds for ruff and mypy, and for what .ci/run installs."""
NOT_IN_MAKE_TEST = re.compile(
    r"solutions/|notebooks/\d\d_(gil_|checkpointing|torchrun|failures_|choosing|other_|ray_)|.* \("
)
"""Notebooks that only CI runs (see the Makefile), and tests with a mark."""


def group(test: str) -> str:
    """What one process runs in its order: a file, for its tests may build on each other; of test_labs.py a lab.

    All unsolved labs are one group, for they share a kernel.
    """
    file, _, name = test.partition("::")
    if not file.endswith("test_labs.py"):
        return file
    if name.startswith("test_the_unsolved_lab"):
        return f"{file}::unsolved"
    lab = re.search(r"\[([a-z]\w*)", name)
    return f"{file}::{lab[1]}" if lab else file


def part(test: str, keywords: Mapping[str, object]) -> str:
    """A group's tests of one mark, as they are stored: "file", "file::lab", "file (extras)"."""
    return group(test) + next((f" ({mark})" for mark in MARKS if mark in keywords), "")


def stored() -> dict[str, float]:
    """Seconds of each part, as they were measured last."""
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def by_group() -> dict[str, float]:
    """Seconds of each group, all its parts together."""
    seconds: dict[str, float] = {}
    for name, value in stored().items():
        seconds[name.partition(" (")[0]] = seconds.get(name.partition(" (")[0], 0) + value
    return seconds


def length(test: str, seconds: Mapping[str, float]) -> float:
    """Of a test's group; what was never measured may be long, so it is begun first."""
    return seconds.get(group(test), float("inf"))


def store(seconds: Mapping[str, float]) -> None:
    """Keep what was measured now, and of what was stored only what still exists."""
    kept = {name: value for name, value in stored().items() if (ROOT / re.split(r"::| \(", name)[0]).exists()}
    kept.update({name: round(value, 1) for name, value in seconds.items()})
    STORED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def seconds_of_make_test() -> float:
    """What `make test` takes, by what was stored."""
    return LINT + sum(value for name, value in stored().items() if not NOT_IN_MAKE_TEST.match(name)) / WORKERS


def seconds_of_ci() -> float:
    """What .ci/run takes: all but what runs each night. (What needs the frameworks has half as many processes.)"""
    parts = [value * (2 if "frameworks" in name else 1) for name, value in stored().items() if "(nightly)" not in name]
    return INSTALL + LINT + sum(parts) / WORKERS
