"""A program in a sandbox, as the grader talks with it: a request goes in, and lines of JSON come out.

``confine.py`` is the process between the two.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from checks.grading.confine import MEMORY, TIME

_PATIENCE = 10  # seconds
_LONGEST_LINE = 1 << 20  # bytes; what the program says is short


class Interrupted(Exception):
    """The grading was stopped."""


class Program:
    """A program inside a sandbox, and what it says."""

    def __init__(self, command: list[str], request: dict[str, Any], stopped: threading.Event) -> None:
        self._stopped, self._rest = stopped, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the program)
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(request).encode())
            given.seek(0)
            self._process = subprocess.Popen(
                command, stdin=given, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True, cwd="/"
            )

    def lines(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What it says, until it ends or is silent for so many seconds; then it is ended.

        Raises:
            Interrupted: the grading is over.
        """
        try:
            while (line := self._next_line(end := time.monotonic() + seconds)) is not None:
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if isinstance(said, dict):
                    yield said
            if time.monotonic() < end:  # it has ended, and its warden is about to
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_PATIENCE)
        finally:
            self.end()

    def end(self) -> None:
        """End it and all that it has started. Told again if need be: Python drops what is raised at some moments."""
        for tell in itertools.chain([self._process.terminate] * 3, itertools.repeat(self._process.kill)):
            if self._process.poll() is not None:
                break
            tell()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
        self._process.stdout.close()

    @property
    def status(self) -> int:
        return self._process.wait()

    @property
    def why(self) -> str:
        """Which limit ended it, "" if none."""
        return {MEMORY: "memory", TIME: "time"}.get(self.status, "")

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read(_LONGEST_LINE).decode(errors="replace")

    def _next_line(self, end: float) -> bytes | None:
        fd = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if self._stopped.is_set():
                raise Interrupted
            if time.monotonic() > end or len(self._rest) > _LONGEST_LINE:
                return None
            if select.select([fd], [], [], 0.2)[0]:
                if not (data := os.read(fd, 1 << 16)):
                    return None
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line
