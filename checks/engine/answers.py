"""A learner's function, as the checks hold it: sealed, to be opened in a rank process only.

Checks get an ``Answer`` in place of the function. It cannot be called where the check runs, so no mistake of
a check's author can run a learner's code in the notebook's kernel or in the grader.
"""

from __future__ import annotations

import base64
import linecache
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from checks.engine.verdicts import Wrong
from utils.ranks.values import dumps_plain

_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_LARGEST = 64 * 1024 * 1024  # bytes of a function with everything in the notebook that it uses


@dataclass(frozen=True)
class Answer:
    """One function (or class) of a learner. Give it to ``run``; in the rank it is the function itself.

    Args:
        name: what the exercise calls it, for sentences.
        payload: the function, pickled by value.
        sources: the text of the cells it comes from, by file name, so that a sentence can show a line.
    """

    name: str
    payload: bytes = field(repr=False)
    sources: dict[str, str] = field(repr=False, default_factory=dict, hash=False)

    @classmethod
    def of(cls, function: Any, name: str) -> Answer:
        """Seal a function.

        Raises:
            Wrong: if this is no function, or cannot leave the notebook.
        """
        if not callable(function):
            raise Wrong(
                f"give the check the function {name} itself, without calling it: "
                f"{name} and not {name}(…); this is a value of type {type(function).__name__}."
            )
        try:
            payload = dumps_plain(function)
        except Exception as error:
            raise Wrong(
                f"{name} uses something from the notebook that cannot be sent to another process "
                f"({type(error).__name__}: {_first_line(error)}): make it inside the function instead."
            ) from None
        if len(payload) > _LARGEST:
            raise Wrong(f"{name} uses {len(payload) / 1e6:.0f} MB of the notebook's variables: pass them as arguments.")
        return cls(name, payload, _sources_of(function))

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"the answer {self.name} runs in rank processes only: use run({self.name}, …)")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Unpickled in the rank, it is the learner's function, guarded.
        from checks.engine.inside import open_answer

        return open_answer, (self.name, self.payload, self.sources)

    def to_json(self) -> dict[str, Any]:
        """For a file that the grader reads; nothing in it is unpickled outside a rank."""
        return {"payload": base64.b64encode(self.payload).decode(), "sources": self.sources}

    @classmethod
    def from_json(cls, name: str, record: dict[str, Any]) -> Answer:
        sources = {str(file): str(text) for file, text in record["sources"].items()}
        return cls(name, base64.b64decode(record["payload"]), sources)


def _sources_of(function: Any) -> dict[str, str]:
    """The texts of the files that hold this function and its neighbours in the same notebook."""
    files = {code.co_filename for code in _codes(function)}
    for neighbour in list(getattr(function, "__globals__", {}).values()):
        if getattr(neighbour, "__module__", None) == getattr(function, "__module__", ""):
            files |= {code.co_filename for code in _codes(neighbour)}
    texts = {file: "".join(linecache.getlines(file)) for file in files if not file.startswith(_LIBRARY)}
    return {file: text for file, text in texts.items() if text}


def _codes(thing: Any) -> Iterator[CodeType]:
    thing = getattr(thing, "__wrapped__", thing)
    if isinstance(code := getattr(thing, "__code__", None), CodeType):
        yield code
    elif isinstance(thing, type):
        for member in vars(thing).values():
            member = getattr(member, "__func__", member)  # of static and class methods
            if isinstance(code := getattr(member, "__code__", None), CodeType):
                yield code


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]
