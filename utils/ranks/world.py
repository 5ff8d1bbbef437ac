"""A world: N rank processes that live on from cell to cell. Knows nothing of IPython."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from utils.ranks import starters
from utils.ranks.errors import BadRequest, RanksInterrupted, RankTimeout
from utils.ranks.failures import DEVICE_LOST, KEPT, LOST, REMADE, Outcome, hang_report, rank_error
from utils.ranks.gather import Gathering
from utils.ranks.interrupts import InterruptFlag, interrupts
from utils.ranks.processes import Processes, RankHandle, check_shape
from utils.ranks.transcript import Transcript
from utils.ranks.views import Quiet, View
from utils.ranks.wire import wait_for
from utils.ranks.words import label

DEFAULT_TIMEOUT = 60.0  # seconds a cell may take, unless told otherwise
REMAKE_TIMEOUT = 20.0


class World:
    """N ranks with a process group. Use it as a context manager, or call :meth:`close`.

    Args:
        size: number of ranks (the world size).
        nodes: present the ranks as this many nodes (LOCAL_RANK, GROUP_RANK, … tell them so).
        backend: "auto" (NCCL with a GPU for every rank, else gloo on the CPU), "gloo" or "nccl".
        start: "fork" or "spawn"; by default fork on Linux.

    Raises:
        BadRequest: the world cannot be had; the text says why and what to do.
    """

    def __init__(self, size: int = 4, nodes: int = 1, backend: str = "auto", start: str | None = None) -> None:
        check_shape(size, nodes, backend)
        self.size, self.nodes = size, nodes
        self._numbers = itertools.count(1)
        self._cells = itertools.count(1)
        self._generation = 0
        self._busy = threading.Lock()
        self._group_lost = False
        starter, reason = starters.starter(start or starters.default_method()), ""
        with interrupts() as flag:
            try:
                self._processes = Processes(starter, size, nodes, backend, flag)
            except starters.CannotFork as error:
                reason = f"The ranks are started as new processes, which is slower: {error}."
                self._processes = Processes(starters.starter("spawn"), size, nodes, backend, flag)
        self.backend, self.note = self._processes.backend, f"{reason} {self._processes.note}".strip()

    @property
    def _handles(self) -> list[RankHandle]:
        return self._processes.handles

    @property
    def pids(self) -> list[int]:
        return [handle.pid for handle in self._handles]

    @property
    def devices(self) -> list[str]:
        return [handle.device for handle in self._handles]

    @property
    def open(self) -> bool:
        return bool(self._handles)

    def dead_ranks(self) -> dict[int, str]:
        """Ranks that are gone, and how they went."""
        return self._processes.dead()

    def close(self) -> None:
        """End all ranks, and whatever processes they started."""
        self._processes.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ work
    def run_cell(
        self,
        source: str,
        file: str | None = None,
        only: Sequence[int] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        view: View | None = None,
    ) -> dict[int, str]:
        """Run source code on the ranks; return the text of the last line's value for each rank that has one.

        Args:
            source: Python code, run in each rank's lasting namespace.
            file: the name that tracebacks give to it, each time another.
            only: these ranks alone; all if None.
            timeout: seconds, None for no limit.
            view: where output goes.

        Raises:
            RankError, RankTimeout, RanksInterrupted: see ``utils.ranks.errors``.
        """
        ranks = self._choose(only)
        file = file or f"<cell {next(self._cells)} on ranks>"
        outcomes = self._command({"do": "cell", "source": source, "file": file}, b"", ranks, timeout, view)
        return {outcome.rank: outcome.value for outcome in outcomes if outcome.value is not None}

    def call(self, blob: bytes, sources: dict[str, str], timeout: float | None, view: View | None = None) -> list[Any]:
        """Call a pickled ``(function, args, kwargs)`` on every rank; return what each returned, rank 0 first.

        For worlds that end with the call: after a failure this one is closed.
        """
        outcomes = self._command({"do": "call", "sources": sources}, blob, self._choose(None), timeout, view)
        return [pickle.loads(outcome.blob) for outcome in outcomes]

    def pull(self, expression: str, only: Sequence[int] | None = None) -> list[Any]:
        """The value of a name (or expression) on each rank, rank 0 first."""
        ranks = self._choose(only)
        outcomes = self._command({"do": "pull", "expression": expression}, b"", ranks, DEFAULT_TIMEOUT, None)
        return [pickle.loads(outcomes[rank].blob) for rank in ranks]

    def push(self, name: str, blob: bytes) -> None:
        """Give a pickled value to every rank under this name."""
        self._command({"do": "push", "name": name}, blob, self._choose(None), DEFAULT_TIMEOUT, None)

    def complete(self, text: str) -> list[str]:
        """Names and attributes on rank 0 that begin with ``text``; empty if it does not answer at once."""
        if not self._handles or not self._busy.acquire(blocking=False):
            return []
        try:
            channel = self._handles[0].channel
            ask = next(self._numbers)
            channel.send({"do": "complete", "text": text, "ask": ask})
            end = time.monotonic() + 0.5
            while (left := end - time.monotonic()) > 0 and wait_for([channel], left):
                for message, _ in channel.take():
                    if message["event"] == "completions" and message["ask"] == ask:
                        return list(message["matches"])
                if channel.eof:
                    break
        except OSError:
            pass
        finally:
            self._busy.release()
        return []

    def _choose(self, only: Sequence[int] | None) -> list[int]:
        ranks = list(range(self.size)) if only is None else sorted(set(only))
        wrong = [rank for rank in ranks if not 0 <= rank < self.size]
        if wrong or not ranks:
            raise BadRequest(
                f"This world has ranks 0 to {self.size - 1}; there is no {label(wrong) if wrong else 'rank'}."
            )
        return ranks

    def _command(
        self, message: dict[str, Any], blob: bytes, ranks: list[int], timeout: float | None, view: View | None
    ) -> list[Outcome]:
        if not self._handles:
            raise BadRequest("This world is closed.")
        if not self._busy.acquire(blocking=False):
            raise BadRequest("The ranks are busy with another cell; wait until it has ended.")
        try:
            with interrupts() as flag:
                if self._group_lost:
                    self._remake()
                return self._gather(message, blob, ranks, timeout, view or Quiet(), flag)
        finally:
            self._busy.release()

    def _gather(
        self,
        message: dict[str, Any],
        blob: bytes,
        ranks: list[int],
        timeout: float | None,
        view: View,
        flag: InterruptFlag,
    ) -> list[Outcome]:
        number = next(self._numbers)
        transcript = Transcript(range(self.size), view.line)
        gathering = Gathering(self._handles, ranks, number, timeout, transcript, flag, lambda: view.update(transcript))
        for rank in ranks:
            try:
                self._handles[rank].channel.send({"cell": number, **message}, blob)
            except OSError:
                pass  # dead: the gathering finds out how
        outcomes = gathering.run()
        transcript.finish()
        view.finish(transcript)
        self._group_lost = not all(gathering.groups_alive.values())
        if gathering.stopped_by or any(o.state in ("raised", "killed", "stopped") for o in outcomes):
            self._fail(message["do"], outcomes, gathering.stopped_by, timeout)
        return outcomes

    def _fail(
        self,
        what: str,
        outcomes: list[Outcome],
        stopped_by: str | None,
        timeout: float | None,
    ) -> NoReturn:
        """Bring the ranks back into a state for the next cell, then raise what happened."""
        if what == "call":
            self.close()
            survives, option = "", "timeout="
        else:
            survives, option = self._recover(outcomes), "--timeout "
        work = "function" if what == "call" else "cell"
        if stopped_by == "interrupt":
            raise RanksInterrupted(f"the {work} was interrupted", hang_report(outcomes, survives))
        if stopped_by == "time-out":
            sentence = (
                f"the {work} did not end within {timeout:g} s ({option}{2 * timeout:g} would give it twice as long)"
            )
            raise RankTimeout(sentence, [], hang_report(outcomes, survives))
        raise rank_error(outcomes, survives)

    def _recover(self, outcomes: list[Outcome]) -> str:
        if any(outcome.state == "killed" for outcome in outcomes):
            self.close()
            return LOST
        if any(outcome.error is not None and outcome.error["device_lost"] for outcome in outcomes):
            self.close()
            return DEVICE_LOST
        took_part = [outcome for outcome in outcomes if outcome.state != "absent"]
        places = {(o.state, o.error["ename"] if o.error else "", o.where()["line"]) for o in took_part}
        if len(places) == 1 and took_part[0].state == "raised" and not took_part[0].lost_connection:
            return KEPT  # all failed at the same place, so nobody is left waiting in the group
        try:
            self._remake()
        except Exception:
            self.close()
            return LOST
        return REMADE

    def _remake(self) -> None:
        """Make the default process group again, on all ranks together."""
        self._generation += 1
        number = next(self._numbers)
        everyone = list(range(self.size))
        unheard = InterruptFlag()  # stopped half-way, it would cost the ranks their variables
        try:
            gathering = Gathering(self._handles, everyone, number, REMAKE_TIMEOUT, Transcript([]), unheard)
            for handle in self._handles:
                handle.channel.send({"do": "remake", "cell": number, "generation": self._generation})
            outcomes = gathering.run()
        finally:
            unheard.close()
        if any(outcome.state != "finished" for outcome in outcomes):
            raise RuntimeError("the process group could not be made again")
        self._group_lost = False
