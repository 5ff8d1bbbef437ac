"""How the tests are dealt out to processes, and which of them need more than the course's core."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from utils.course import outline

EXTRA = re.compile("|".join(lecture.slug for lecture in outline.lectures() if lecture.needs) or "(?!)")
"""Checks of these labs are marked `frameworks`, as are the files that say so: `make test-frameworks` runs them."""
LAB = re.compile(rf"\[({'|'.join(outline.slugs('solutions'))})")


class ByFileAndLab(LoadScopeScheduling):
    """A file's tests run in one process, for they may build on each other; in test_labs.py each lab's do."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        lab = LAB.search(test) if file.endswith("test_labs.py") else None
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
        if "tests/checks/" in item.nodeid and EXTRA.search(item.nodeid):
            item.add_marker(pytest.mark.frameworks)
