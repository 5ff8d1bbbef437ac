"""The processes of a world: started together, interrupted together, ended together, with nothing left over."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from utils.hardware.nvml import count_gpus
from utils.ranks import starters
from utils.ranks.errors import BadRequest, RanksInterrupted
from utils.ranks.failures import how_it_ended
from utils.ranks.groups import fitting_backend
from utils.ranks.lifetimes import send_signal
from utils.ranks.output import label
from utils.ranks.ports import free_ports
from utils.ranks.wire import Channel, Wakeup, pair, wait_for

MOST_RANKS = 128
START_TIMEOUT = 120.0
COMPLETION_PATIENCE = 0.5  # seconds: whoever types does not wait longer


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


def check_gpus(size: int, nodes: int, backend: str) -> None:
    """Raise BadRequest, in one sentence, where NCCL is asked for and there are not enough GPUs."""
    if backend == "nccl":
        fitting_backend(backend, size, count_gpus())


class InterruptFlag(Wakeup):
    """Counts Ctrl-C instead of letting it strike between any two lines of ours; wakes whoever waits for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def strike(self, *_: Any) -> None:
        self.count += 1
        self.set()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """While this context lasts (a prompt, say), Ctrl-C also raises KeyboardInterrupt."""

        def strike_and_raise(*_: Any) -> None:
            self.strike()
            raise KeyboardInterrupt

        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, strike_and_raise) if in_main else None
        try:
            yield
        finally:
            if in_main:
                signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts() -> Iterator[InterruptFlag]:
    """While this context lasts, SIGINT only raises a flag (in the main thread; elsewhere Python has no say)."""
    flag = InterruptFlag()
    before = None
    in_main = threading.current_thread() is threading.main_thread()
    try:
        if in_main:
            before = signal.signal(signal.SIGINT, flag.strike)
        yield flag
    finally:
        if in_main and before is not None:
            signal.signal(signal.SIGINT, before)
        flag.close()


@dataclass
class RankHandle:
    """The notebook's side of one rank."""

    rank: int
    channel: Channel
    pipes: tuple[int, int]  # the rank reads these itself; after its death its last words are still in them
    starter: starters.Starter
    pid: int = 0
    device: str = ""
    note: Any = None  # of its last cell, for all ranks at the next one: see ``utils.ranks.provider``

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

    def exit_code(self) -> int | None:
        """None while it lives, and 0 if it was never started."""
        return self.starter.exit_code(self.pid) if self.pid else 0

    def complete(self, text: str, ask: int) -> list[str]:
        """Names and attributes on this rank that begin with ``text``; empty if it does not answer at once.

        Args:
            ask: a number by which the answer is told from those that came too late.
        """
        try:
            self.channel.send({"do": "complete", "text": text, "ask": ask})
            end = time.monotonic() + COMPLETION_PATIENCE
            while (left := end - time.monotonic()) > 0 and wait_for([self.channel], left):
                for message, _ in self.channel.take():
                    if message["event"] == "completions" and message["ask"] == ask:
                        return list(message["matches"])
                if self.channel.eof:
                    break
        except OSError:
            pass  # it is gone
        return []

    def kill(self) -> None:
        """End it, and the processes in its group."""
        if self.exit_code() is not None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            send_signal(self.pid, signal.SIGKILL)  # forked this instant, and not yet leader of its group
        except PermissionError:
            pass

    def close(self) -> None:
        self.channel.close()
        for pipe in self.pipes:
            os.close(pipe)
        self.starter.forget(self.pid)


class Processes:
    """The rank processes of one world.

    Attributes:
        handles: one per rank, rank 0 first; empty once closed.
        backend: what the ranks chose.
        note: what the reader should know about that choice, or "".

    Raises:
        BadRequest: the ranks refuse what was asked for.
        RuntimeError: they could not start.
        RanksInterrupted: the reader stopped it.
    """

    def __init__(
        self,
        starter: starters.Starter,
        size: int,
        nodes: int,
        backend: str,
        devices: dict[str, Any] | None,
        imports: Sequence[str],
        flag: InterruptFlag,
    ) -> None:
        self.handles: list[RankHandle] = []
        self.backend, self.note = "", ""
        self._store_fd, self._store_path = _make_store()
        config = {
            "size": size,
            "nodes": nodes,
            "backend": backend,
            "devices": devices,
            "port": free_ports(1)[0],  # nobody listens on it: it is there for programs that read MASTER_PORT
            "store": self._store_path,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "path": sys.path,
        }
        starter.preload(*imports, *(("torch._dynamo", devices["module"]) if devices else ()))
        try:
            for rank in range(size):
                self._start_one(starter, {"rank": rank, **config}, flag)
            self._wait_until_up(flag)
        except BaseException:
            self.close()
            raise

    def _start_one(self, starter: starters.Starter, config: dict[str, Any], flag: InterruptFlag) -> None:
        channel, theirs = pair()
        out, err = os.pipe(), os.pipe()
        handle = RankHandle(config["rank"], channel, (out[0], err[0]), starter)
        self.handles.append(handle)
        try:
            fds = [theirs.fileno(), *out, *err, self._store_fd]
            handle.pid = starter.start(fds, lambda: flag.count > 0)
        except OSError as error:
            raise BadRequest(
                f"rank {config['rank']} of {config['size']} could not be started: {error.strerror}. Use fewer ranks, "
                "or end programs that you no longer need (this user or container may have only so many processes)."
            ) from None
        finally:
            theirs.close()
            os.close(out[1])
            os.close(err[1])
        channel.send(config)

    def _wait_until_up(self, flag: InterruptFlag) -> None:
        waiting = {handle.channel: handle for handle in self.handles}
        deadline = time.monotonic() + START_TIMEOUT
        while waiting:
            if flag.count:
                raise RanksInterrupted("the start of the ranks was interrupted", "")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{label(h.rank for h in waiting.values())} did not start in {START_TIMEOUT:.0f} s.")
            readable = wait_for([*waiting, flag], 0.2)
            for channel in [one for one in readable if one in waiting]:
                if self._is_up(waiting[channel]):
                    del waiting[channel]

    def _is_up(self, handle: RankHandle) -> bool:
        for message, _ in handle.channel.take():
            if message["event"] == "up":
                handle.device, self.backend = message["device"], message["backend"]
                self.note = self.note or message["note"]
                return True
            if message["event"] == "failed" and message["refused"]:
                raise BadRequest(message["text"])
            if message["event"] == "failed":
                raise RuntimeError(f"rank {handle.rank} could not start:\n{message['text']}")
        if handle.channel.eof:
            raise RuntimeError(f"rank {handle.rank} could not start.\n{handle.last_words()}")
        return False

    def dead(self) -> dict[int, str]:
        """Ranks that are gone, and how they went."""
        codes = {handle.rank: handle.exit_code() for handle in self.handles}
        return {rank: how_it_ended(code) for rank, code in codes.items() if code is not None}

    def kill(self) -> None:
        """Let all ranks end now; ``close`` is still to come."""
        for handle in self.handles:
            handle.kill()

    def close(self) -> None:
        """End all ranks, and whatever processes they started."""
        self.kill()
        end = time.monotonic() + 5
        while time.monotonic() < end and any(handle.exit_code() is None for handle in self.handles):
            time.sleep(0.002)
        for handle in self.handles:
            handle.close()
        self.handles = []
        if self._store_fd >= 0:
            os.close(self._store_fd)
            self._store_fd = -1
        if self._store_path:
            try:
                os.unlink(self._store_path)
            except FileNotFoundError:
                pass


def _make_store() -> tuple[int, str | None]:
    """The file through which the ranks find each other: in memory where possible, so that nothing can be left over."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ranks-store"), None
    fd, path = tempfile.mkstemp(prefix="ranks-store-")
    return fd, path
