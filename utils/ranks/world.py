"""A world: N rank processes that live on from cell to cell. Knows nothing of IPython."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from utils.ranks import starters
from utils.ranks.failures import (
    KEPT,
    LOST,
    REMADE,
    Outcome,
    RanksInterrupted,
    RankTimeout,
    exit_reason,
    hang_report,
    rank_error,
)
from utils.ranks.gather import Gathering, InterruptFlag, interrupts
from utils.ranks.transcript import Transcript, label
from utils.ranks.views import Quiet, View
from utils.ranks.wire import Channel, pair

DEFAULT_TIMEOUT = 60.0  # seconds a cell may take, unless told otherwise
MOST_RANKS = 128
START_TIMEOUT = 120.0


class BadRequest(ValueError):
    """What was asked for makes no sense; the text is one sentence that says what to do instead."""


@dataclass
class RankHandle:
    """The notebook's side of one rank."""

    rank: int
    channel: Channel
    pipes: tuple[int, int]  # the rank reads these itself; after its death its last words are still in them
    starter: starters.Starter
    pid: int = 0
    device: str = ""

    def last_words(self) -> str:
        """What a dead rank's C++ code wrote last and nobody has forwarded."""
        words = []
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
            try:
                while data := os.read(pipe, 1 << 16):
                    words.append(data.decode(errors="replace"))
            except OSError:
                pass
        return "".join(words)[-20_000:]

    def close(self) -> None:
        self.channel.close()
        for pipe in self.pipes:
            os.close(pipe)
        self.starter.forget(self.pid)


def check_shape(size: int, nodes: int, backend: str) -> None:
    """Raise BadRequest, in one sentence, for a world that cannot be."""
    if not 1 <= size <= MOST_RANKS:
        raise BadRequest(f"A world has 1 to {MOST_RANKS} ranks, not {size}.")
    if nodes < 1 or size % nodes:
        fits = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        raise BadRequest(
            f"{size} ranks cannot be shared equally among {nodes} nodes: with {size} ranks, --nodes can be {fits}."
        )
    if backend not in ("auto", "gloo", "nccl"):
        raise BadRequest(f"The backend is auto, gloo or nccl, not {backend!r}.")


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
        self.size, self.nodes, self.asked_backend = size, nodes, backend
        self.backend, self.note = "", ""
        self.names: list[str] = []
        self._numbers = itertools.count(1)
        self._cells = itertools.count(1)
        self._generation = 0
        self._busy = threading.Lock()
        self._group_lost = False
        self._store_fd, self._store_path = _make_store()
        self._handles: list[RankHandle] = []
        starter = starters.starter(start or starters.default_method())
        try:
            with interrupts() as flag:
                self._start(starter, flag)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ life
    def _start(self, starter: starters.Starter, flag: InterruptFlag) -> None:
        port = _free_port()
        config = {
            "size": self.size,
            "nodes": self.nodes,
            "backend": self.asked_backend,
            "port": port,
            "store": self._store_path,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "path": sys.path,
        }
        for rank in range(self.size):
            channel, theirs = pair()
            out, err = os.pipe(), os.pipe()
            handle = RankHandle(rank, channel, (out[0], err[0]), starter)
            self._handles.append(handle)
            fds = [theirs.fileno(), *out, *err, self._store_fd]
            try:
                handle.pid = starter.start(fds)
            finally:
                theirs.close()
                os.close(out[1])
                os.close(err[1])
            channel.send({"rank": rank, **config})
        self._wait_until_up(flag)

    def _wait_until_up(self, flag: InterruptFlag) -> None:
        import select

        waiting = {handle.channel: handle for handle in self._handles}
        deadline = time.monotonic() + START_TIMEOUT
        while waiting:
            if flag.count:
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                raise RuntimeError(f"{label(h.rank for h in waiting.values())} did not start in {START_TIMEOUT:.0f} s.")
            readable, _, _ = select.select([*waiting, flag.wake_read], [], [], 0.2)
            for channel in [one for one in readable if one in waiting]:
                handle = waiting[channel]
                for message, _ in channel.take():
                    if message["event"] == "up":
                        handle.device, self.backend = message["device"], message["backend"]
                        self.note = self.note or message["note"]
                        waiting.pop(channel, None)
                    elif message["event"] == "failed":
                        if message["refused"]:
                            raise BadRequest(message["text"])
                        raise RuntimeError(f"rank {handle.rank} could not start:\n{message['text']}")
                if channel.eof and channel in waiting:
                    raise RuntimeError(f"rank {handle.rank} could not start.\n{handle.last_words()}")

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
        codes = {handle.rank: handle.starter.exit_code(handle.pid) for handle in self._handles}
        return {rank: exit_reason(code) for rank, code in codes.items() if code is not None}

    def close(self) -> None:
        """End all ranks, and whatever processes they started."""
        for handle in self._handles:
            if handle.pid and handle.starter.exit_code(handle.pid) is None:
                try:
                    os.killpg(handle.pid, signal.SIGKILL)
                except ProcessLookupError:
                    # Forked this instant, not yet leader of its group.
                    _kill(handle.pid)
                except PermissionError:
                    pass
        end = time.monotonic() + 5
        while time.monotonic() < end and any(
            handle.pid and handle.starter.exit_code(handle.pid) is None for handle in self._handles
        ):
            time.sleep(0.002)
        for handle in self._handles:
            handle.close()
        self._handles = []
        if self._store_fd >= 0:
            os.close(self._store_fd)
            self._store_fd = -1
        if self._store_path:
            try:
                os.unlink(self._store_path)
            except FileNotFoundError:
                pass

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
            RankError, RankTimeout, RanksInterrupted: see ``utils.ranks.failures``.
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
        import select

        if not self._handles or not self._busy.acquire(blocking=False):
            return []
        try:
            channel = self._handles[0].channel
            channel.send({"do": "complete", "text": text})
            end = time.monotonic() + 0.5
            while (left := end - time.monotonic()) > 0 and select.select([channel], [], [], left)[0]:
                for message, _ in channel.take():
                    if message["event"] == "completions":
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
                    self._remake(flag)
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
        if gathering.names is not None:
            self.names = gathering.names
        self._group_lost = not all(gathering.groups_alive.values())
        if gathering.stopped_by or any(o.state in ("raised", "killed", "stopped") for o in outcomes):
            self._fail(message["do"], outcomes, gathering.stopped_by, timeout, flag)
        return outcomes

    def _fail(
        self,
        what: str,
        outcomes: list[Outcome],
        stopped_by: str | None,
        timeout: float | None,
        flag: InterruptFlag,
    ) -> NoReturn:
        """Bring the ranks back into a state for the next cell, then raise what happened."""
        if what == "call":
            self.close()
            survives, option = "", "timeout="
        else:
            survives, option = self._recover(outcomes, flag), "--timeout "
        work = "function" if what == "call" else "cell"
        if stopped_by == "interrupt":
            raise RanksInterrupted(f"the {work} was interrupted", hang_report(outcomes, survives))
        if stopped_by == "time-out":
            sentence = (
                f"the {work} did not end within {timeout:g} s ({option}{2 * timeout:g} would give it twice as long)"
            )
            raise RankTimeout(sentence, [], hang_report(outcomes, survives))
        raise rank_error(outcomes, survives)

    def _recover(self, outcomes: list[Outcome], flag: InterruptFlag) -> str:
        if any(outcome.state == "killed" for outcome in outcomes):
            self.close()
            return LOST
        took_part = [outcome for outcome in outcomes if outcome.state != "absent"]
        places = {(o.state, o.error["ename"] if o.error else "", o.where()["line"]) for o in took_part}
        if len(places) == 1 and took_part[0].state == "raised" and not took_part[0].lost_connection:
            return KEPT  # all failed at the same place, so nobody is left waiting in the group
        try:
            self._remake(flag)
        except Exception:
            self.close()
            return LOST
        return REMADE

    def _remake(self, flag: InterruptFlag) -> None:
        """Make the default process group again, on all ranks together."""
        self._generation += 1
        flag.count = 0
        number = next(self._numbers)
        everyone = list(range(self.size))
        gathering = Gathering(self._handles, everyone, number, 30.0, Transcript([]), flag)
        for handle in self._handles:
            handle.channel.send({"do": "remake", "cell": number, "generation": self._generation})
        outcomes = gathering.run()
        if any(outcome.state != "finished" for outcome in outcomes):
            raise RuntimeError("the process group could not be made again")
        self._group_lost = False


def _make_store() -> tuple[int, str | None]:
    """The file through which the ranks find each other: in memory where possible, so that nothing can be left over."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ranks-store"), None
    fd, path = tempfile.mkstemp(prefix="ranks-store-")
    return fd, path


def _free_port() -> int:
    # Nobody listens on it; it is there for programs that read MASTER_PORT.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
