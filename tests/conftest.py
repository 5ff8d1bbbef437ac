"""How the tests are dealt out to processes, and which of them need more than the course's core."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

EXTRA = re.compile(
    r"(10_other_frameworks|11_ray_and_tuning)|test_(other_frameworks|ray_and_tuning|frameworks|tuning)\w*\.py"
)
"""Tests of lectures and labs 10 and 11: `make test-frameworks` runs them, `make test` leaves them out."""


class ByFileAndLab(LoadScopeScheduling):
    """A file's tests run in one process, for they may build on each other; in test_labs.py each lab's do."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        lab = re.search(r"\[(\d\d)_", test) if file.endswith("test_labs.py") else None
        return f"{file}::{lab[1]}" if lab else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFileAndLab(config, log)


def pytest_configure() -> None:
    """``COURSE_WITHOUT_ONEDNN=1``: torch has no variable of its own for its kernels without oneDNN."""
    if os.environ.get("COURSE_WITHOUT_ONEDNN"):
        import torch

        torch.backends.mkldnn.enabled = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if EXTRA.search(item.nodeid):
            item.add_marker(pytest.mark.frameworks)
