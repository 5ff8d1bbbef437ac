"""How tests and notebooks are dealt out to processes, and which tests need more than the course's core."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from dealing import by_group, group, length, part, store
from xdist.scheduler import LoadScopeScheduling

from course import outline

EXTRA = re.compile("|".join(lecture.slug for lecture in outline.lectures() if lecture.needs) or "(?!)")
"""Checks of these labs are marked `frameworks`, as are the files that say so: `make test-frameworks` runs them."""


_seconds: dict[str, float] = defaultdict(float)
"""What each part of a group took."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help="store how long each file took (make durations)")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[part(report.nodeid, report.keywords)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.store_durations and not hasattr(session.config, "workerinput"):
        store(_seconds)


class InGroups(LoadScopeScheduling):
    """One process runs a group; the groups are begun in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.fixture(autouse=True)
def _process_state() -> Iterator[None]:
    """No test changes anything for the tests after it, in whichever order they run."""
    from process_state import kept  # (notebooks' cells have no fixtures, and need no torch here)

    with kept():
        yield


@pytest.fixture(autouse=True, scope="module")
def _torch_without_simulated_gpus() -> Iterator[None]:
    """A module whose tests have made simulated GPUs leaves a torch that has none."""
    install = sys.modules.get("simgpu.install")
    if install is None or not install._undo:
        yield
        if install := sys.modules.get("simgpu.install"):
            install.uninstall()
    else:
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return InGroups(config, log)


def pytest_configure() -> None:
    """Ranks show nothing live, since nbval compares what a cell shows with what is stored.

    ``COURSE_WITHOUT_ONEDNN=1``: torch has no variable of its own for its kernels without oneDNN.
    """
    os.environ.setdefault("RANKS_LIVE", "0")
    if os.environ.get("COURSE_WITHOUT_ONEDNN"):
        import torch

        torch.backends.mkldnn.enabled = False


def _parameters(item: pytest.Item) -> list[Any]:
    call = getattr(item, "callspec", None)
    return list(call.params.values()) if call else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/checks/" in item.nodeid and EXTRA.search(item.nodeid):
            item.add_marker(pytest.mark.frameworks)
        if sys.platform == "linux" and "tests/ranks/" in item.nodeid and "spawn" in _parameters(item):
            # Ranks are forked here, and spawned elsewhere. How they end depends on it; what cells do and show does not,
            # and `make notebooks-spawn` runs many.
            of_processes = re.search(r"test_ranks_(abort|leaks|gpu)\.py", item.nodeid)
            item.add_marker(pytest.mark.extras if of_processes else pytest.mark.nightly)
    if hasattr(config, "workerinput"):  # one process alone keeps the order of the files
        seconds = by_group()
        items.sort(key=lambda item: -length(item.nodeid, seconds))
