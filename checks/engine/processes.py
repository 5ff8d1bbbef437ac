"""Running a function of a check that calls learners' functions: always in rank processes, always under a time-out.

``run`` returns plain values or raises ``Wrong`` (or ``NotStarted``) with a sentence, whatever the function did: ran for
ever, ended its process, printed a million lines, replaced half of torch.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from checks.engine import plain, printed
from checks.engine.answers import Answer
from checks.engine.standstill import End, hung, read_note, report, who_waits
from checks.engine.verdicts import Wrong, raised_from
from course.size import PREFIXES
from utils.ranks.output import label

# What each rank would import, for itself, and what is better imported once, before they are forked:
_ALWAYS = (
    "cloudpickle",
    "numpy.random",
    "torch.utils._device",
    "checks.engine.inside",
    "checks.engine.standstill",
    "checks.engine.wire",
)
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def run(
    function: Answer | Callable[..., Any],
    *arguments: Any,
    ranks: int | None = None,
    nodes: int = 1,
    timeout: float = 60,
) -> Any:
    """Run a function of the check, or an answer itself, in fresh rank processes.

    Args:
        function: takes answers among its arguments and looks at what they do. It may raise ``Wrong`` itself.
        arguments: its arguments; answers among them arrive as the learner's functions.
        ranks: None for one process and its result; a number for that many ranks and a list of results, rank 0
            first.
        nodes: how many nodes the ranks are presented as.
        timeout: seconds; the check's own time-out ends it earlier if that is nearer.

    Returns:
        Plain values: numbers, text, tensors and containers; anything else is an ``Opaque``.

    Raises:
        Wrong: with one sentence that says what happened.
        NotStarted: if the answer raises NotImplementedError.
    """
    import cloudpickle

    from checks.engine.inside import run_in_rank
    from utils import launch
    from utils.ranks import RankError, RankTimeout, preload

    names = [value.name for value in (function, *arguments) if isinstance(value, Answer)]
    subject, size, seconds = " or ".join(names) or "your function", ranks or 1, _seconds_left(timeout)
    preload(*_ALWAYS, *dict.fromkeys(_modules([function, *arguments])))
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        notes, where = Path(folder), {"ranks": size, "nodes": nodes, "backend": "gloo"}
        work = cloudpickle.dumps((function, arguments)), folder, ranks is not None
        try:
            results = launch(run_in_rank, *work, timeout=seconds, show_output=False, **where)
        except RankTimeout as error:
            raise _too_long(error, subject, size, seconds) from None
        except RankError as error:
            if ends := hung(notes):
                raise _stood_still(ends, subject) from None
            raise _failed(error, subject, size, notes) from None
        finally:
            printed.show(printed.left(notes, size))
    found = [plain.from_bytes(result) for result in results]
    return found[0] if ranks is None else found


class Died(Wrong):
    """A process has ended without a word: it was killed, or has ended itself."""


class StoodStill(Wrong):
    """Ranks wait for each other, and nobody is left to wake them. ``ends``: how each rank ended."""

    def __init__(self, sentence: str, ends: list[End]) -> None:
        super().__init__(sentence, details=report(ends))
        self.ends = ends


def run_to_the_ends(
    probe: Callable[..., Any], *arguments: Any, ranks: int, nodes: int = 1, timeout: float = 60
) -> list[End]:
    """Run a probe on ranks as ``run`` does, but let each rank come to its own end, and say how each ended.

    Raises:
        Wrong: a process has died, or was too slow.
        NotStarted: the answer says so.
    """
    try:
        return run(_to_its_end, probe, *arguments, ranks=ranks, nodes=nodes, timeout=timeout)
    except StoodStill as stood_still:
        return stood_still.ends


def _to_its_end(probe: Callable[..., Any], *arguments: Any) -> End:
    """Inside a rank: the probe, and how it ended."""
    from checks.engine.inside import Outcome
    from checks.engine.standstill import Watch

    value = None
    try:
        value = probe(*arguments)
        end: End = {"state": "returned"}
    except Wrong as wrong:
        end = {"state": "raised", "text": wrong.text, "found": True}
    except Outcome as outcome:
        if outcome.record["kind"] == "not started":
            raise
        end = {"state": "raised", "text": outcome.record["sentence"]}
    Watch.of_this_rank.ended(end)
    return end | {"value": value}


def _modules(values: Sequence[Any]) -> Iterator[str]:
    """Modules of the check's own functions among these values, and what those ask for."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _modules(value)
        elif not isinstance(value, Answer) and callable(value):
            module = getattr(value, "__module__", None) or ""
            if module.startswith(PREFIXES):
                yield module
                yield from getattr(sys.modules[module], "PRELOAD", ())


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
    if (left := end - time.monotonic()) <= 0:
        raise Wrong("not finished within the check's time-out: each part works, but all together are too slow.")
    return min(timeout, left)


def _stood_still(ends: list[End], subject: str) -> Wrong:
    first, told = f"{subject} was not finished: ", who_waits(ends)
    if len(ends) == 1:
        return StoodStill(f"{first}{told}, and nobody is there to end that.", ends)
    return StoodStill(f"{first}does a rank wait for another that never comes? {told[0].upper()}{told[1:]}.", ends)


def _too_long(error: Any, subject: str, ranks: int, seconds: float) -> Wrong:
    after = f"{subject} was not finished after {seconds:.0f} s"
    if ranks == 1:
        return Wrong(f"{after}: is there a loop that never ends?")
    return Wrong(f"{after}: does a rank wait for another that never comes?", details=str(error.report))


def _failed(error: Any, subject: str, ranks: int, notes: Path) -> Exception:
    """The sentence for a run that ended early, from what the rank that failed first has written down."""
    first = error.failures[0]
    outcomes = {rank: outcome for rank in range(ranks) if (outcome := read_note(notes / f"outcome.{rank}"))}
    if first.rank not in outcomes:
        how = " ".join(str(first.message).split()).removeprefix("ended with ")
        where = f" on rank {first.rank}" if ranks > 1 else ""
        return Died(f"{subject} ended its process{where} ({how}).")
    told = outcomes[first.rank]
    # Ranks that fail alike fail in any order; what is shown should not depend on it.
    alike = [rank for rank, outcome in outcomes.items() if outcome["sentence"] == told["sentence"]]
    on = f"on {label(alike)} " if told["kind"] != "not started" and len(alike) < ranks else ""
    return raised_from(outcomes[alike[0]] | {"sentence": on + told["sentence"]})
