"""The official solution of an exercise as a program, and the likely mistakes as changes of its text."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "reference"
"""Each lab's official solution (`make labs` writes it), so that checks work where ``solutions/`` is not there."""


@dataclass(frozen=True)
class Reference:
    """The official solution of one exercise.

    Args:
        lab: the lab's slug.
        names: the functions that a learner writes, in the check's order, with spaces between them.
        mistakes: a sentence about what an answer does, and by which change of the official text (old: new) it comes
            about. An answer that does the same is refused with this sentence.
        text: the official program, if it is not the one that `make labs` has written.
    """

    lab: str
    names: str
    mistakes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    text: str = field(default="", repr=False)

    @cached_property
    def program(self) -> str:
        """The text: imports, functions, classes and constants, not what the notebook tries or checks."""
        return self.text or (FOLDER / f"{self.lab}.py").read_text(encoding="utf-8")

    def functions(self, mistake: str = "") -> list[Callable[..., Any]]:
        """The official functions; with one of the mistakes, if it is named.

        Raises:
            ValueError: the official solution has changed, and not the mistake.
        """
        text = self.program
        for old, new in self.mistakes[mistake].items() if mistake else ():
            if old not in text:
                raise ValueError(f"{self.lab}, {self.names}: {old!r} of {mistake!r} is not in the official solution")
            text = text.replace(old, new)
        file = f"<{self.lab}: {mistake or 'official'}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        made: dict[str, Any] = {"__name__": "answers"}  # no module of that name: pickled by value, as a notebook's
        exec(compile(text, file, "exec"), made)
        return [made[name] for name in self.names.split()]
