"""What the tests of utils.ranks share: a view that records, and a look at what is left running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from utils.ranks.output import Transcript, View


class Recorder(View):
    """Keeps what a notebook would store."""

    def __init__(self) -> None:
        self.outputs: list[dict] = []

    def finish(self, transcript: Transcript) -> None:
        self.outputs = transcript.outputs()

    def text(self, name: str | None = None) -> str:
        return "".join(o["text"] for o in self.outputs if o["output_type"] == "stream" and name in (None, o["name"]))

    def shown(self) -> list[dict]:
        return [o["data"] for o in self.outputs if o["output_type"] == "display_data"]


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether the condition comes true within so many seconds (a bound on hanging, not a measurement)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def gone(pids: list[int]) -> bool:
    """Whether none of these processes is left (a zombie counts as gone)."""
    return not [pid for pid in pids if psutil.pid_exists(pid) and _status(pid) != psutil.STATUS_ZOMBIE]


def _status(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def file_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("*")}
