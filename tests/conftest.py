"""How the tests are dealt out to processes, and which of them need more than the course's core."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dealing import group, length, stored
from xdist.scheduler import LoadScopeScheduling

EXTRA = re.compile(
    r"(10_other_frameworks|11_ray_and_tuning)|test_(other_frameworks|ray_and_tuning|frameworks|tuning)\w*\.py"
)
"""Tests of lectures and labs 10 and 11: `make test-frameworks` runs them, `make test` leaves them out."""


class InGroups(LoadScopeScheduling):
    """One process runs a group; the groups are begun in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return InGroups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if EXTRA.search(item.nodeid):
            item.add_marker(pytest.mark.frameworks)
    if hasattr(config, "workerinput"):  # one process alone keeps the order of the files
        seconds = stored()
        items.sort(key=lambda item: -length(item.nodeid, seconds))
