"""What came of a run of one of the frameworks' programs: losses, weights, each worker's output and last words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception)\b.*)", re.MULTILINE)


@dataclass(frozen=True)
class Worker:
    """One of the processes that a launcher has started.

    Args:
        role: "worker"; of TensorFlow also "chief", "ps" or "evaluator".
        index: its number within the role.
        output: what it printed (TensorFlow: on both streams, without the log of its libraries).
        errors: what it wrote to stderr.
        code: its exit code, where somebody tells it; -9: SIGKILL. None: nobody does, or it was ended from here.
    """

    role: str
    index: int
    output: str
    errors: str = ""
    code: int | None = None

    @property
    def name(self) -> str:
        """ "worker 0", "chief", …."""
        return f"{self.role} {self.index}" if self.role in ("worker", "ps") else self.role

    @property
    def steps(self) -> int:
        """How many steps it has said to have done."""
        return len(re.findall(r"^step \d+$", self.output, re.MULTILINE))

    @property
    def last_words(self) -> str:
        """The exception it ended with, in one line; empty: it was ended before it could say anything."""
        found = _EXCEPTION.findall(self.errors or self.output)
        return found[-1] if found else ""


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Args:
        command: what one would type. TensorFlow: what each of the processes was started with.
        code: exit code of the launcher, or of the process that leads; None: it had to be ended.
        workers: in the order of their numbers.
        launcher: what the launcher itself said.
        found: what the program has written: "losses", "weights" (see ``utils.training.same_training``), and facts.
        files: names of all files that it left, and their sizes in bytes.
    """

    command: str
    code: int | None
    workers: tuple[Worker, ...]
    launcher: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def losses(self) -> list[float]:
        """The loss of each step, over the whole batch."""
        if "losses" not in self.found:
            said = "\n".join([self.launcher, *(worker.errors or worker.output for worker in self.workers)])
            raise RuntimeError(f"{self.command} has not finished its training (exit code {self.code}):\n{said[-2000:]}")
        return self.found["losses"]

    @property
    def weights(self) -> list[Any]:
        """The final weights, as numpy arrays in the shapes of ``utils.training.same_training.weights``."""
        import numpy

        self.losses  # noqa: B018 (says why, if there are none)
        return [numpy.array(array, dtype=numpy.float32) for array in self.found["weights"]]
