"""In a rank: a learner's calls, and what there was before and after each of them. Nothing is judged here.

A scene makes the calls: ``watch.call("average_gradients", model=model)``. What is noted of each call is a *record* of
plain data: what has changed, what was sent, what else happened. Records leave the rank and are judged outside.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from checks import inside, printed, standstill
from checks.contracts import events
from checks.contracts.contract import Case, Facts, shown
from checks.contracts.messages import ENDS
from checks.contracts.snapshot import Snapshot
from checks.contracts.surroundings import changed, functions, own_folder, settled, surroundings
from checks.contracts.wire import Stop, Wire
from checks.verdicts import NotStarted

COMPUTING = 8  # seconds of a core for one call, which needs less than one; a busy machine makes them longer, not more
AT_LEAST, PATIENCE = 4, 20  # so many are enough once the reader has waited so long, in seconds of the wall's clock
RAISED = "nothing more: it has raised an exception"


def in_rank(
    scene: Callable[..., None],
    cases: Sequence[Case],
    refused: tuple[str, ...],
    names: Sequence[str],
    folder: str,
    *answers: Any,
) -> list[dict[str, Any]]:
    """Play a scene for each case, until one of them stops; what was found, case by case. Files go into the folder."""
    wire = Wire()
    if any("gpus" in case for case in cases):  # which change torch's functions: before these are looked at
        from checks.contracts import gpus

        gpus.begin()
    events.begin()
    torch.autograd.backward(torch.ones(1, requires_grad=True).sum())  # autograd's first time makes threads
    found, before = [], functions()
    for case in cases:
        watch = Watch(case, dict(zip(names, answers, strict=True)), wire, refused)
        facts: Facts = {}
        stumbled = ""
        _seed(case)
        with own_folder(folder), contextlib.suppress(Stop):
            try:
                scene(case, watch, facts)
                wire.end_of_scene()
            except (NotStarted, inside.Outcome):
                raise
            except Exception as error:  # of the scene itself: something that it got was of no use
                stumbled = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                wire.end_of_scene(f"what came back could not be used ({stumbled})")
        found.append({"facts": facts, "records": watch.records, "stopped": wire.stopped, "stumbled": stumbled})
        found[-1]["printed"] = printed.here.take()
        last = wire.stopped or stumbled or any("raised" in record for record in watch.records)
        if watch.records and (last or case is cases[-1]):  # (which takes longer than most functions)
            watch.records[-1]["around"] += list(changed(before, functions()))
        if last:
            break
    return found


def _seed(case: Case) -> None:
    """What is drawn without a generator of its own is the same in each run, and another on each rank."""
    numbers = random.Random(f"{case.get('seed')} on rank {os.environ.get('RANK')}")
    torch.manual_seed(numbers.getrandbits(60))
    random.seed(numbers.random())


class Watch:
    """Around a learner's calls in one case."""

    def __init__(self, case: Case, answers: Mapping[str, Any], wire: Wire, refused: tuple[str, ...]) -> None:
        self.case, self.answers, self.wire, self.refused = case, answers, wire, refused
        self.records: list[dict[str, Any]] = []

    def call(self, function: str, /, **arguments: Any) -> Any:
        """Call a learner's function. The names are for paths in the snapshot; it gets the values by position."""
        with self.step(function, **arguments):
            return self.answers[function](*arguments.values())

    def attempt(self, function: str, /, **arguments: Any) -> Facts | None:
        """``call`` for a function that has to raise an exception now and then: what it has raised, as plain data."""
        with self.step(function, **arguments) as record:
            try:
                self.answers[function](*arguments.values())
            except inside.Outcome as outcome:
                cause = outcome.__cause__
                if isinstance(outcome, Stop) or cause is None or not outcome.record["sentence"]:
                    raise
                kinds = [kind.__name__ for kind in type(cause).__mro__]
                record["caught"] = {"kinds": kinds, "text": str(cause)[:2000], "sentence": outcome.record["sentence"]}
        return record.get("caught")

    @contextlib.contextmanager
    def step(self, rules: str, made: Any = None, /, **things: Any) -> Iterator[dict[str, Any]]:
        """In the ``with`` block a learner's code runs, by the rules of that name, and may touch these things.

        Args:
            made: the object of a learner's class that is at work; it may keep tensors.

        Raises:
            Stop: the learner's code has failed, or the ranks do not agree.
        """
        record: dict[str, Any] = {"rules": rules, "of": _of(made, things), "made": made is not None}
        record |= {"finished": False, "changes": [], "around": []}
        self.records.append(record)
        before, around = Snapshot(things), surroundings()
        failure: BaseException | None = None
        with events.listening() as heard, events.refusing(self.refused, heard), self.wire.listening():
            try:
                with self._inside(), not_for_ever():
                    yield record
            except BaseException as error:
                failure = error
            record |= self.wire.found() | {"events": heard}
            self._end(failure, record)
            record |= self.wire.found()
        later = settled(around)
        record["changes"] = before.changes_to(Snapshot(things))
        record["around"] = list(changed(around, later))
        if record["around"]:
            torch.set_default_device(None)  # or the check's own tensors would be made elsewhere
        functions = [answer.function for answer in self.answers.values()]
        record["holds"], record["course"] = events.held_by(*functions, made)
        record |= {"hidden": self.wire.hidden, "sent": self.wire.sent, "finished": True}

    def _end(self, failure: BaseException | None, record: dict[str, Any]) -> None:
        if failure is None:
            self.wire.end_of_step(how=ENDS["caught" in record])
            return
        if isinstance(failure, Stop) or inside.is_the_readers_interrupt(failure):
            raise failure
        step = record["rules"].rstrip(",")
        outcome = failure if isinstance(failure, inside.Outcome) else inside.outcome_of_any(failure, step)
        if outcome.record["kind"] == "not started":
            raise outcome from failure
        record["raised"] = outcome.record["sentence"]
        self.wire.end_of_step(RAISED, ENDS[1])
        raise Stop(record["raised"]) from failure

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        watch = standstill.Watch.of_this_rank
        if watch:
            watch.case, watch.inside = shown(self.case), True
        try:
            yield
        finally:
            if watch:
                watch.inside = False


def _of(made: Any, things: Mapping[str, Any]) -> str:
    """For what an answer may keep something from call to call: an object, a model, or tensors of the same sizes."""
    of = made if made is not None else next(iter(things.values()), None)
    if not isinstance(of, torch.Tensor):
        return f"{id(of)}"
    return ", ".join(f"{one.dtype} {list(one.shape)}" for one in things.values() if isinstance(one, torch.Tensor))


@contextlib.contextmanager
def not_for_ever(seconds: int = COMPUTING) -> Iterator[None]:
    """End a loop that never ends, by the time that this process has computed.

    Six ranks that share two busy cores take minutes for 8 s each. So fewer are enough where the reader has waited.
    """
    began, computed = time.monotonic(), min(AT_LEAST, seconds)

    def over(*_: Any) -> None:
        nonlocal computed
        if computed < seconds and time.monotonic() - began < PATIENCE:
            computed += 1
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)
            return
        raise inside.Outcome(
            "wrong", f"it was not finished after {computed} s of computing: is there a loop without end?"
        )

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, computed)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
