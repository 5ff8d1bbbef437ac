"""Running a function of a check that calls learners' functions: always in rank processes, always under a time-out.

``run`` returns plain values or raises ``Wrong`` (or ``NotStarted``) with a sentence, whatever the function did: ran for
ever, ended its process, printed a million lines, replaced half of torch.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.engine import plain, printed
from checks.engine.answers import Answer
from checks.engine.preloading import modules_of
from checks.engine.standstill import End, hung, report, who_waits
from checks.engine.verdicts import Wrong, raised_from

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

    names = [value.name for value in (function, *arguments) if isinstance(value, Answer)]
    seconds = _seconds_left(timeout)
    work = _Work(
        subject=" or ".join(names) or "your function",
        payload=cloudpickle.dumps((function, arguments)),
        watch=ranks is not None,
        ranks=ranks or 1,
        nodes=nodes,
        seconds=seconds,
        modules=modules_of([function, *arguments]),
    )
    with tempfile.TemporaryDirectory(prefix="check-") as notes:
        try:
            results = _launch(work, Path(notes))
        finally:
            printed.show(printed.left(notes, work.ranks))
    return results[0] if ranks is None else results


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
    Watch.of_this_rank.finish(end)
    return end | {"value": value}


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


@dataclass(frozen=True)
class _Work:
    """One launch: what sentences talk of, what to call, where, how long, whether ranks that stand still are ended."""

    subject: str
    payload: bytes
    watch: bool
    ranks: int
    nodes: int
    seconds: float
    modules: tuple[str, ...] = ()


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


def _launch(work: _Work, notes: Path) -> list[Any]:
    from checks.engine.inside import run_in_rank
    from utils import launch
    from utils.ranks import RankError, RankTimeout, preload

    preload(*work.modules)
    try:
        results = launch(
            run_in_rank,
            work.payload,
            str(notes),
            work.watch,
            work.seconds,
            ranks=work.ranks,
            nodes=work.nodes,
            timeout=work.seconds,
            backend="gloo",
            show_output=False,
        )
        return [plain.from_bytes(result) for result in results]
    except RankTimeout as error:
        raise _too_long(error, work) from None
    except RankError as error:
        if ends := hung(notes):
            raise _stood_still(ends, work) from None
        raise _failed(error, work, notes) from None


def _stood_still(ends: list[End], work: _Work) -> Wrong:
    first, told = f"{work.subject} was not finished: ", who_waits(ends)
    if work.ranks == 1:
        return StoodStill(f"{first}{told}, and nobody is there to end that.", ends)
    return StoodStill(f"{first}does a rank wait for another that never comes? {told[0].upper()}{told[1:]}.", ends)


def _too_long(error: Any, work: _Work) -> Wrong:
    after = f"{work.subject} was not finished after {work.seconds:.0f} s"
    if work.ranks == 1:
        return Wrong(f"{after}: is there a loop that never ends?")
    details = str(getattr(error, "report", ""))
    return Wrong(f"{after}: does a rank wait for another that never comes?", details=details)


def _failed(error: Any, work: _Work, notes: Path) -> Exception:
    """The sentence for a run that ended early, from what the rank that failed first has written down."""
    first = error.failures[0]
    outcomes = {rank: outcome for rank in range(work.ranks) if (outcome := _outcome(notes, rank))}
    if first.rank not in outcomes:
        how = " ".join(str(first.message).split()).removeprefix("ended with ")
        where = f" on rank {first.rank}" if work.ranks > 1 else ""
        return Died(f"{work.subject} ended its process{where} ({how}).")
    sentence = outcomes[first.rank]["sentence"]
    if outcomes[first.rank]["kind"] == "not started":
        return raised_from(outcomes[first.rank])
    # Ranks that fail alike fail in any order; what is shown should not depend on it.
    alike = [rank for rank, outcome in outcomes.items() if outcome["sentence"] == sentence]
    if len(alike) < work.ranks:
        sentence = f"on {_ranks(alike)} {sentence}"
    return raised_from(outcomes[alike[0]] | {"sentence": sentence})


def _outcome(notes: Path, rank: int) -> dict[str, str] | None:
    try:
        return json.loads((notes / f"outcome.{rank}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
