"""How tests and notebooks are dealt out to processes: in groups, the longest first, so that all end together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "durations.json"
"""Seconds of each group, its `extras` among them, written by `make durations`."""


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


def stored() -> dict[str, float]:
    """Seconds of each group, as they were measured last."""
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def length(test: str, seconds: Mapping[str, float]) -> float:
    """Of a test's group; what was never measured may be long, so it is begun first."""
    return seconds.get(group(test), float("inf"))


def store(seconds: Mapping[str, float]) -> None:
    """Keep what was measured now, and of what was stored only what still exists."""
    kept = {name: value for name, value in stored().items() if (ROOT / name.partition("::")[0]).exists()}
    kept.update({name: round(value, 1) for name, value in seconds.items()})
    STORED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
