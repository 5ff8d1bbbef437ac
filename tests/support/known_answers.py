"""Known answers to an exercise in one file: right ones, written differently, and wrong ones with their sentence.

The right answer is the official solution; where an exercise has none, what ``tests/answers/slug/exercise.py`` defines.
Variants are changes of its text, or functions of their own; what these leave out is taken from it:

    wrong("sum", "is the sum over the ranks", {"parameter.grad /= dist.get_world_size()": "pass"})

    @right("flattened")
    def flattened():
        def average_gradients(model): …
        return (average_gradients,)

Names in capitals are texts for ``wrong``.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

_found: list[Variant] = []


@dataclass(frozen=True)
class Variant:
    """What an answers file declares: ``says`` is "" for a right one; either ``change`` or ``make`` is given."""

    name: str
    says: str
    change: Mapping[str, str] | None = None
    make: Callable[[], Sequence[Any]] | None = None


@dataclass(frozen=True)
class Known:
    """A known answer: its name, what makes its functions, and which part of the check's sentence is meant for it."""

    name: str
    make: Callable[[], Mapping[str, Any]]
    says: str = ""

    @cached_property
    def functions(self) -> Mapping[str, Any]:
        return self.make()  # (later: of all answers that are collected few are judged)

    @property
    def kind(self) -> str:
        return "wrong" if self.says else "right"


def right(name: str, change: Mapping[str, str] | None = None) -> Any:
    """A right answer that is written differently."""
    return _variant(name, "", change)


def wrong(name: str, says: str, change: Mapping[str, str] | None = None) -> Any:
    """A wrong answer, and the part of the check's sentence that is meant for it."""
    assert says, f"what does the check say to {name!r}?"
    return _variant(name, says, change)


def _variant(name: str, says: str, change: Mapping[str, str] | None) -> Any:
    if change is not None:
        return _found.append(Variant(name, says, change))
    return lambda make: _found.append(Variant(name, says, None, make)) or make


def load(path: Path, names: Sequence[str], official: str = "") -> list[Known]:
    """All answers of a file to an exercise that asks for functions of these names. The first one is the right one.

    Args:
        official: the right answer's text, if the file does not define it.
    """
    _found.clear()
    given = run(path.read_text(encoding="utf-8"), str(path))
    variants = list(_found)
    assert len({one.name for one in variants}) == len(variants), f"{path}: two variants have the same name"
    if official:
        given = run(official, f"{path}:right")
    text, usual = official or right_text(path), {name: given[name] for name in names}

    def of(one: Variant, changed: str) -> dict[str, Any]:
        if one.make is not None:
            made = one.make()
            functions = {function.__name__: function for function in made}
            if not functions.keys() <= set(names):  # a lambda, or a class of another name: by their order
                functions = dict(zip(names, made, strict=True))
        else:
            functions = run(changed, f"{path}:{one.name}")
        return {name: functions.get(name, usual[name]) for name in names}

    found = [Known("right", lambda: usual)]
    for one in variants:
        changed = text
        for old, new in (one.change or {}).items():
            assert old in changed, f"{path}: {one.name!r} changes {old!r}, which is not there"
            changed = changed.replace(old, new)
        found.append(Known(one.name, partial(of, one, changed), one.says))
    return found


def right_text(path: Path) -> str:
    """The right answer alone: imports, functions and classes, without the variants and the texts that they change."""
    text = path.read_text(encoding="utf-8")
    lines, parts = text.splitlines(), []
    for node in ast.parse(text).body:
        ours = isinstance(node, ast.ImportFrom) and node.module == __name__
        ours |= isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()
        if not (ours or isinstance(node, ast.Expr) or getattr(node, "decorator_list", None)):
            parts.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return "\n\n\n".join(parts) + "\n"


def run(text: str, file: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names that a text of Python defines, beside those that are there; its lines known to tracebacks."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for lines in sentences
    names = {} if names is None else names
    names.setdefault("__name__", "answers")  # no module of that name: its functions are pickled by value
    exec(compile(text, file, "exec"), names)
    return names
