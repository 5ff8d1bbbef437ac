"""Running a learner's function for a check: always in rank processes, always under a time-out.

``run`` and ``run_cases`` return plain values or raise ``Wrong`` (or ``NotStarted``) with a sentence, whatever the
function did: ran for ever, ended its process, printed a million lines, replaced half of torch.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from utils.checks import plain
from utils.checks.answers import Answer
from utils.checks.verdicts import NotStarted, Wrong

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def run(
    function: Answer | Callable[..., Any],
    *arguments: Any,
    ranks: int | None = None,
    nodes: int = 1,
    timeout: float = 10,
    changes_arguments: bool = False,
    returns_none: bool = False,
) -> Any:
    """Run an answer, or a function of the check that calls answers, in fresh rank processes.

    Args:
        function: an ``Answer``, or a probe: a function of the check's module that takes answers among its
            arguments and looks at what they do. A probe may raise ``Wrong`` itself.
        arguments: its arguments; answers among them arrive as the learner's functions.
        ranks: None for one process and its result; a number for that many ranks and a list of results, rank 0
            first.
        nodes: how many nodes the ranks are presented as.
        timeout: seconds; the check's own time-out ends it earlier if that is nearer.
        changes_arguments: whether an answer that is run directly may change its arguments in place.
        returns_none: whether an answer that is run directly may return None.

    Returns:
        Plain values: numbers, text, tensors and containers. In a probe's result anything else is an
        ``Opaque``.

    Raises:
        Wrong: with one sentence that says what happened.
        NotStarted: if the answer raises NotImplementedError.
    """
    results = run_cases(
        function,
        [arguments],
        ranks=ranks,
        nodes=nodes,
        timeout=timeout,
        changes_arguments=changes_arguments,
        returns_none=returns_none,
    )
    return results[0]


def run_cases(
    function: Answer | Callable[..., Any],
    cases: Sequence[tuple[Any, ...]],
    *,
    ranks: int | None = None,
    nodes: int = 1,
    timeout: float = 10,
    changes_arguments: bool = False,
    returns_none: bool = False,
) -> list[Any]:
    """Run a function on many inputs in one launch (starting processes costs more than most functions).

    Args:
        function: as for ``run``.
        cases: a tuple of arguments for each call. The calls follow each other in the same processes.
        ranks, nodes, timeout, changes_arguments, returns_none: as for ``run``; the time-out covers all cases.

    Returns:
        For each case what ``run`` would return.

    Raises:
        Wrong, NotStarted: as ``run``; the sentence names the arguments if there are several cases.
    """
    import cloudpickle

    cases = [tuple(case) for case in cases]
    name = function.name if isinstance(function, Answer) else "your function"
    rules = {"changes_arguments": changes_arguments, "returns_none": returns_none}
    payload = cloudpickle.dumps((function, cases))
    seconds = _seconds_left(timeout)
    with tempfile.TemporaryDirectory(prefix="check-") as notes:
        results = _launch(name, cases, payload, notes, rules, ranks or 1, nodes, seconds)
    if ranks is None:
        return results[0]
    return [list(per_rank) for per_rank in zip(*results, strict=True)]


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Everything that is run inside ends after these seconds at the latest."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _seconds_left(timeout: float) -> float:
    end = _deadline.get()
    if end is None:
        return timeout
    left = end - time.monotonic()
    if left <= 0:
        raise Wrong(
            "not finished within the check's time-out: each part works, but all together are too slow."
        )
    return min(timeout, left)


def _launch(
    name: str,
    cases: list[tuple[Any, ...]],
    payload: bytes,
    notes: str,
    rules: dict[str, Any],
    ranks: int,
    nodes: int,
    seconds: float,
) -> list[list[Any]]:
    from utils import launch
    from utils.checks.inside import run_cases_in_rank
    from utils.ranks import RankError, RankTimeout

    try:
        answers = launch(
            run_cases_in_rank,
            payload,
            notes,
            rules,
            ranks=ranks,
            nodes=nodes,
            timeout=seconds,
            backend="gloo",
            show_output=False,
        )
        return [plain.from_bytes(answer) for answer in answers]
    except RankTimeout as error:
        raise _too_long(error, name, _case(cases, notes, range(ranks)), ranks, seconds) from None
    except RankError as error:
        raise _failed(error, name, cases, notes) from None


def _too_long(error: Any, name: str, case: str, ranks: int, seconds: float) -> Wrong:
    after = f"{name} was not finished after {seconds:.0f} s{case}"
    if ranks == 1:
        return Wrong(f"{after}: is there a loop that never ends?")
    return Wrong(
        f"{after}: does a rank wait for another that never comes?", details=str(getattr(error, "report", ""))
    )


def _failed(error: Any, name: str, cases: list[tuple[Any, ...]], notes: str) -> Exception:
    """The sentence for a run that ended early, from what the rank that failed first has written down."""
    first = error.failures[0]
    on_rank = f" (on rank {first.rank})" if len(error.failures) > 1 or first.rank else ""
    case = _case(cases, notes, [first.rank])
    try:
        outcome = json.loads(Path(notes, f"outcome.{first.rank}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        how = " ".join(str(first.message).split())
        return Wrong(f"{name} ended its process{case}{on_rank}: {how}")
    if outcome["kind"] == "not started":
        return NotStarted()
    wrong = Wrong(outcome["sentence"].rstrip(".") + case + on_rank, details=outcome["details"])
    wrong.figures = outcome["figures"]
    return wrong


def _case(cases: list[tuple[Any, ...]], notes: str, ranks: Sequence[int]) -> str:
    """Which of several cases was running, as a part of a sentence."""
    if len(cases) < 2:
        return ""
    for rank in ranks:
        try:
            case = cases[int(Path(notes, f"case.{rank}").read_text())]
        except (OSError, ValueError, IndexError):
            continue
        shown = ", ".join(plain.shorten(value, 60) for value in case if not isinstance(value, Answer))
        return f" for the arguments ({shown})"
    return ""
