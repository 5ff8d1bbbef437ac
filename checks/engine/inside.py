"""What a check runs inside a rank process: the learner's function, and a watch over what it does there.

Every way in which it can fail is turned into an ``Outcome``, which is written to a small file that the check
reads. (A file and not a return value, because the other ranks must see an exception: they may be waiting.)
"""

from __future__ import annotations

import io
import json
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from checks.engine import printed
from checks.engine.plain import to_bytes
from checks.engine.verdicts import NotStarted, Wrong

_GIVEN = ("rank", "world_size", "local_rank", "device", "torch", "dist", "display")
_opened: list[OpenAnswer] = []
# How torch tells of what was raised in a DataLoader's worker, say: the kind, where, and the traceback as text.
_ELSEWHERE = re.compile(r"Caught (\w+) (in .*?)\.\nOriginal (Traceback.*)", re.DOTALL)


class Outcome(BaseException):
    """Ends a rank; its text says how. No Exception, so that no ``except Exception`` on the way stops it."""

    def __init__(self, kind: str, sentence: str = "", figures: str = "", details: str = "") -> None:
        self.record = {"kind": kind, "sentence": sentence, "figures": figures, "details": details}
        super().__init__(sentence or kind)


def run_in_rank(payload: bytes, notes: str, watched: bool) -> bytes:
    """Call a function and return what it returns as plain bytes.

    Args:
        payload: cloudpickled (function, arguments).
        notes: the folder that the check reads when this rank does not come to the end.
        watched: whether ranks that stand still are to be ended.
    """
    import torch.distributed as dist

    from checks.engine.standstill import Watch

    before, sys.stdout = sys.stdout, printed.here
    rank = dist.get_rank()
    watch = Watch(notes, rank, dist.get_world_size())
    if watched:
        watch.start()
    try:
        import cloudpickle

        function, arguments = cloudpickle.loads(payload)
        result = to_bytes(function(*arguments))
        printed.here.leave(notes, rank)
        watch.ended({"state": "returned"})
        return result
    except BaseException as error:
        watch.over.set()  # the launcher ends the others
        printed.here.leave(notes, rank)
        outcome = error if isinstance(error, Outcome) else outcome_of_any(error)
        _write(f"{notes}/outcome.{rank}", json.dumps(outcome.record))
        # The learner's own exception, where there is one: from its frames the launcher sees whether this rank
        # failed by itself or only because another one has gone.
        raise outcome.__cause__ or error  # noqa: B904
    finally:
        sys.stdout = before


class OpenAnswer:
    """The learner's function inside a rank: what it prints is kept, and every failure turned into an Outcome."""

    def __init__(self, name: str, function: Callable[..., Any], files: list[str]) -> None:
        self.name, self.function, self.files = name, function, files

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = printed.here, _Nowhere()
        failure: BaseException | None = None
        result = None
        try:
            result = self.function(*arguments, **named)
        except BaseException as error:
            failure = error
        sys.stdout, sys.stderr = streams
        if failure is not None:
            told = self.outcome_of(failure)
            raise told from (failure if told is not failure else None)  # (nothing of the check's own is its own cause)
        return result

    def __getattr__(self, name: str) -> Any:  # attributes of a learner's class
        return getattr(self.function, name)

    def outcome_of(self, failure: BaseException, who: str = "") -> BaseException:
        """The sentence for an exception that came out of the learner's code; who raised it, if not this function."""
        who = who or self.name
        if isinstance(failure, Wrong | Outcome | NotStarted):
            return failure  # from a piece of the check that the learner's function was given
        if is_the_readers_interrupt(failure):
            return failure  # which ends the check
        # (The lab's own line: an answer may pass on such an error of a function that it was given.)
        unwritten, places = "raise NotImplementedError" in self._line(failure), _places(failure)
        if unwritten and type(failure) is NotImplementedError and places[-1][0] in self.files:
            return Outcome("not started")
        if isinstance(failure, SystemExit):
            what = f"calls sys.exit(){self._line(failure)}, which ends the whole program"
            return Outcome("wrong", f"{who} {what}: use `return` to leave a function.")
        kind, message, where = type(failure).__name__, str(failure), ""
        if elsewhere := _ELSEWHERE.match(message):
            kind, where, trace = elsewhere.groups()
            message, where = re.split(rf"\n\S*{kind}:? ?", trace)[-1], f", {where}"
            if kind == "NotImplementedError" and unwritten:
                return Outcome("not started")
        elif "Traceback (most recent call last)" in message:  # of another process: its last line says what happened
            message = message.strip().splitlines()[-1]
        message = " ".join(message.split())[:300].rstrip(".")
        return Outcome("wrong", f"{who} raised {kind}{': ' * bool(message)}{message}{where}{self._line(failure)}.")

    def passed_through(self, failure: BaseException) -> bool:
        """Whether an exception came through the learner's code."""
        return any(file in self.files for file, _ in _places(failure))

    def _line(self, failure: BaseException) -> str:
        places = [place for place in _places(failure) if place[0] in self.files]
        if not places:
            return ""
        return f", in line {places[-1][1]}: `{linecache.getline(*places[-1]).strip()}`"


def open_answer(name: str, payload: bytes, sources: dict[str, str]) -> OpenAnswer:
    """Unpickle a learner's function in the rank, with the names that every rank gives (rank, dist, …)."""
    import cloudpickle

    for file, text in sources.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        function = cloudpickle.loads(payload)
    except BaseException as error:
        raise Outcome(
            "wrong",
            f"{name} cannot be opened in another process ({type(error).__name__}: {error}): "
            "does it use a module that only the notebook's folder has?",
        ) from error
    given = {key: value for key, value in vars(sys.modules["__main__"]).items() if key in _GIVEN}
    for part in (function, *(vars(function).values() if isinstance(function, type) else ())):
        part = getattr(part, "__func__", part)
        if isinstance(part, types.FunctionType):
            for key, value in given.items():
                part.__globals__.setdefault(key, value)
    _opened.append(OpenAnswer(name, function, list(sources)))
    return _opened[-1]


class _Nowhere(io.TextIOBase):
    """Swallows what a learner's function writes to stderr: warnings of libraries, mostly."""

    def write(self, text: str) -> int:
        return len(text)


def is_the_readers_interrupt(error: BaseException) -> bool:
    """Whether the reader has stopped the check: a rank's handler of a signal has raised it, no answer and no case."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    file, line = _places(error)[-1]
    return f"{os.sep}utils{os.sep}ranks{os.sep}" in file or "raise" not in linecache.getline(file, line)


def _places(error: BaseException) -> list[tuple[str, int]]:
    """File and line of each frame that an exception came through, those in a worker last."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if elsewhere := _ELSEWHERE.match(str(error)):
        places += [(file, int(line)) for file, line in re.findall(r'  File "(.+)", line (\d+)', elsewhere[3])]
    return places


def outcome_of_any(error: BaseException, step: str = "") -> Outcome:
    """For an exception that no answer's own call has caught: the check's, or from a method of a learner's class.

    Of several answers with the same lines nobody knows whose turn it was: then it was the ``step`` that raised it.
    """
    through = [answer for answer in _opened if answer.passed_through(error)]
    for answer in through:
        if isinstance(found := answer.outcome_of(error, step if len(through) > 1 else ""), Outcome):
            return found
    if isinstance(error, Wrong | NotStarted):
        return Outcome(**error.record)
    message = " ".join(str(error).split())[:300]
    return Outcome("wrong", f"the check could not use what your function gave it ({type(error).__name__}: {message}).")


def _write(path: str, text: str) -> None:
    # Renamed into place: the check may read after this process was killed in the middle.
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
