"""A world: N rank processes that live on from cell to cell; ``launch``: one that ends with the call."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from utils.ranks import provider, starters
from utils.ranks.errors import BadRequest
from utils.ranks.failures import DEVICE_LOST, KEPT, LOST, REMADE, Outcome, failure
from utils.ranks.gather import Gathering
from utils.ranks.locate import OURS
from utils.ranks.output import Output, Status, Transcript, View, default_view, label, own_memory
from utils.ranks.processes import InterruptFlag, Processes, check_shape, interrupts
from utils.ranks.values import dumps_plain, sources_of
from utils.ranks.wire import packed

DEFAULT_TIMEOUT = float(os.environ.get("RANKS_TIMEOUT", 60))  # seconds that a cell may take, unless told otherwise
GIVEN = ("rank", "world_size", "local_rank", "torch", "dist", "display")
AS_WORLD, REMAKE_TIMEOUT, END_TIMEOUT = -1.0, 20.0, 10.0
T = TypeVar("T")


@dataclass
class Command:
    """What some of the ranks shall do together.

    Attributes: the message and the bytes behind it; ranks: who shall do it; timeout in seconds (None: no limit).
    """

    message: dict[str, Any]
    blob: bytes
    ranks: list[int]
    timeout: float | None


class World:
    """N ranks with a process group. Use it as a context manager, or call :meth:`close`.

    Args:
        size: number of ranks (the world size).
        nodes: present the ranks as this many nodes (LOCAL_RANK, GROUP_RANK, … tell them so).
        backend: "auto" (NCCL with a GPU for every rank, else gloo on the CPU), "gloo" or "nccl".
        start: "fork" or "spawn"; by default fork on Linux.
        timeout: seconds that a function, or a cell that is told nothing else, may take; None or 0 for no limit.
        devices: options for devices from elsewhere: see ``utils.ranks.provider``.
        imports: modules that the ranks will import: where ranks are forked, imported once before.

    Raises:
        BadRequest: the world cannot be had; the text says why and what to do.

    ``world["x"]`` is the list of what ``x`` is on each rank; ``world["x"] = value`` gives ``x`` to every rank.
    """

    def __init__(
        self,
        size: int = 4,
        nodes: int = 1,
        backend: str = "auto",
        start: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        devices: dict[str, Any] | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        check_shape(size, nodes, backend)
        self.size, self.nodes, self.timeout, self.devices_from = size, nodes, timeout, devices
        self._numbers = itertools.count(1)
        self._cells = itertools.count(1)
        self._generation = 0
        self._busy, self._group_lost = threading.Lock(), False
        self._flag: InterruptFlag | None = None  # of the command that runs now
        self.last_failure: tuple[list[str], list[Output]] | None = None  # what it said, and what ranks had printed
        reason = ""
        with interrupts() as flag:
            wanted = (size, nodes, backend, devices, imports, flag)
            try:
                self._processes = Processes(starters.starter(start or starters.default_method()), *wanted)
            except starters.CannotFork as error:
                reason = f"The ranks are started as new processes, which is slower: {error}."
                self._processes = Processes(starters.starter("spawn"), *wanted)
        self.backend = self._processes.backend
        self.note = " ".join(filter(None, (reason, self._processes.note, hidden_module())))

    @property
    def pids(self) -> list[int]:
        return [handle.pid for handle in self._processes.handles]

    @property
    def devices(self) -> list[str]:
        return [handle.device for handle in self._processes.handles]

    @property
    def open(self) -> bool:
        return bool(self._processes.handles)

    def status(self) -> Status:
        """What ``%ranks`` shows."""
        dead = self.dead_ranks()
        per_node = self.size // self.nodes
        rows: list[tuple[str, ...]] = []
        for rank, (pid, device) in enumerate(zip(self.pids, self.devices, strict=True)):
            memory = dead.get(rank) or own_memory(pid)
            rows.append((str(rank), str(rank // per_node), str(rank % per_node), str(pid), device, memory))
        nodes = f" presented as {self.nodes} nodes" if self.nodes > 1 else ""
        links = ""
        if self.devices_from is not None:
            links = provider.provider().connected(self.devices_from, self.size, self.nodes)
        return Status(f"{self.size} ranks{nodes}, backend {self.backend}{links and f', {links}'}.", rows)

    def dead_ranks(self) -> dict[int, str]:
        """Ranks that are gone, and how they went."""
        return self._processes.dead()

    def close(self) -> None:
        """End all ranks, and whatever processes they started."""
        self._processes.kill()
        ended = self._busy.acquire(timeout=END_TIMEOUT)  # work in the background notices
        self._processes.close()
        if ended:
            self._busy.release()

    def interrupt(self) -> None:
        """Stop what runs in the background, as the stop button does with a cell."""
        if flag := self._flag:
            flag.strike()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_cell(
        self,
        source: str,
        file: str | None = None,
        only: Sequence[int] | None = None,
        timeout: float | None = AS_WORLD,
        view: View | None = None,
    ) -> dict[int, str]:
        """Run source code on the ranks; return the text of the last line's value for each rank that has one.

        Args:
            source: Python code, run in each rank's lasting namespace.
            file: the name that tracebacks give to it, each time another.
            only: these ranks alone; all if None.
            timeout: seconds; None for no limit; by default the world's.
            view: where output goes.

        Raises:
            RankError, RankTimeout, RanksInterrupted: see ``utils.ranks.errors``.
        """
        return _texts(self._do(self._cell(source, file, only, timeout), view))

    def submit_cell(
        self,
        source: str,
        file: str | None = None,
        only: Sequence[int] | None = None,
        timeout: float | None = AS_WORLD,
        view: View | None = None,
    ) -> Future[dict[int, str]]:
        """As ``run_cell``, but in the background: a future of the values."""
        return self._submit(self._cell(source, file, only, timeout), view, _texts)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``function(*args, **kwargs)`` on every rank; return what each returned, rank 0 first.

        A function of a notebook finds rank, world_size, device, torch, dist, …; it raises what ``run_cell`` raises.
        """
        return _values(self._do(self._call(function, args, kwargs)))

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[list[Any]]:
        """As ``run``, but in the background: a future of what each rank returned."""
        return self._submit(self._call(function, args, kwargs), None, _values)

    def run_last(self, function: Callable[..., Any], args: Any, kwargs: Any, view: View) -> list[Any]:
        """As ``run``, for a world that ends with the call: a failure closes it."""
        return _values(self._do(self._call(function, args, kwargs, lasting=False), view))

    def pull(self, expression: str, only: Sequence[int] | None = None) -> list[Any]:
        """The value of a name (or expression) on each rank, rank 0 first."""
        return self._fetch({"do": "pull", "expression": expression}, only)

    def recorded(self) -> list[Any]:
        """What devices from elsewhere have recorded of the last cell on each rank: see ``utils.ranks.provider``."""
        return self._fetch({"do": "recorded"})

    def _fetch(self, message: dict[str, Any], only: Sequence[int] | None = None) -> list[Any]:
        outcomes = self._do(self._command(message, only=only))
        return _values(outcome for outcome in outcomes if outcome.state == "finished")

    def push(self, name: str, value: Any) -> None:
        """Give a value to every rank under this name. Raises BadRequest if it cannot be sent, or the name is taken."""
        if name in GIVEN:
            raise BadRequest(f"On ranks, {name!r} has a meaning of its own, anew for each cell: take another name.")
        try:
            blob = dumps_plain(value)
        except Exception as error:
            raise BadRequest(f"{name!r} cannot be sent to the ranks: {error}") from None
        self._do(self._command({"do": "push", "name": name}, blob))

    def debug(self, rank: int, view: View) -> None:
        """Open the debugger where this rank failed in its last cell. Raises BadRequest if it has not."""
        outcomes = self._do(self._command({"do": "debug"}, only=[rank], timeout=None), view)
        if outcomes[rank].value is None:
            raise BadRequest(f"rank {rank} has not failed in the last cell: there is nothing to debug.")

    __getitem__ = pull
    __setitem__ = push

    def complete(self, text: str) -> list[str]:
        """Names and attributes on rank 0 that begin with ``text``; empty if it does not answer at once."""
        if not self._processes.handles or not self._busy.acquire(blocking=False):
            return []
        try:
            return self._processes.handles[0].complete(text, next(self._numbers))
        finally:
            self._busy.release()

    # ------------------------------------------------------------------ commands
    def _cell(self, source: str, file: str | None, only: Sequence[int] | None, timeout: float | None) -> Command:
        message = {"do": "cell", "source": source, "file": file or f"<cell {next(self._cells)} on ranks>"}
        return self._command(message, b"", only, timeout)

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any, lasting: bool = True) -> Command:
        if not callable(function):
            raise TypeError(f"This takes a function and its arguments, not {type(function).__name__!r} first.")
        message = {"do": "call", "sources": sources_of(function), "lasting": lasting}
        return self._command(message, dumps_plain((function, args, kwargs)))

    def _command(
        self,
        message: dict[str, Any],
        blob: bytes = b"",
        only: Sequence[int] | None = None,
        timeout: float | None = AS_WORLD,
    ) -> Command:
        ranks = list(range(self.size)) if only is None else sorted(set(only))
        wrong = [rank for rank in ranks if not 0 <= rank < self.size]
        if wrong or not ranks:
            missing = label(wrong) if wrong else "rank"
            raise BadRequest(f"This world has ranks 0 to {self.size - 1}; there is no {missing}.")
        return Command(message, blob, ranks, self.timeout if timeout == AS_WORLD else timeout)

    def _do(self, command: Command, view: View | None = None) -> list[Outcome]:
        """Have a command done; refused while the ranks do another. How it went on each rank; raises the failure."""
        self._take()
        return self._work(command, view)

    def _submit(self, command: Command, view: View | None, read: Callable[[list[Outcome]], T]) -> Future[T]:
        """As ``_do``, in a thread of its own: a future of what ``read`` makes of the outcomes."""
        self._take()
        future: Future[T] = Future()
        work = threading.Thread(
            target=self._work_for, args=(future, command, view, read), daemon=True, name="ranks in the background"
        )
        try:
            work.start()
        except BaseException:
            self._busy.release()
            raise
        return future

    def _take(self) -> None:
        """Take hold of the ranks, or refuse; ``_work`` lets go of them."""
        if not self._busy.acquire(blocking=False):
            raise BadRequest("The ranks are busy with another cell; wait until it has ended (%ranks wait).")
        if not self._processes.handles:
            self._busy.release()
            raise BadRequest("This world is closed.")

    def _work(self, command: Command, view: View | None) -> list[Outcome]:
        try:
            with interrupts() as self._flag:
                if self._group_lost:
                    self._remake()
                return self._gather(command, view or View(), self._flag)
        finally:
            self._flag = None
            self._busy.release()

    def _work_for(
        self, future: Future[T], command: Command, view: View | None, read: Callable[[list[Outcome]], T]
    ) -> None:
        try:
            future.set_result(read(self._work(command, view)))
        except BaseException as error:
            future.set_exception(error)

    def _gather(self, command: Command, view: View, flag: InterruptFlag) -> list[Outcome]:
        number = next(self._numbers)
        transcript = Transcript(range(self.size), view.line)
        handles, message = self._processes.handles, command.message
        gathering = Gathering(handles, command.ranks, number, command.timeout, transcript, flag, view)
        parts = packed({"cell": number, "notes": [h.note for h in handles], **message}, command.blob)
        for rank in command.ranks:
            with contextlib.suppress(OSError):  # dead: the gathering finds out how
                handles[rank].channel.send_packed(parts)
        outcomes = gathering.run()
        transcript.finish()
        view.finish(transcript)
        self._group_lost = not all(gathering.groups_alive.values())
        if gathering.stopped_by or any(o.state in ("raised", "killed", "stopped") for o in outcomes):
            # First the ranks are brought into a state for the next cell.
            survives = self._recover(outcomes) if message.get("lasting", True) else ""
            if not survives:
                self._processes.close()
            error = failure(message["do"] == "call", outcomes, gathering.stopped_by, command.timeout, survives)
            self.last_failure = error.report_lines(), transcript.outputs()
            raise error
        return outcomes

    def _recover(self, outcomes: list[Outcome]) -> str:
        if any(outcome.state == "killed" for outcome in outcomes):
            self._processes.close()
            return LOST
        if any(outcome.error is not None and outcome.error["device_lost"] for outcome in outcomes):
            self._processes.close()
            return DEVICE_LOST
        took_part = [outcome for outcome in outcomes if outcome.state != "absent"]
        places = {(o.state, o.error["ename"] if o.error else "", o.where()["line"]) for o in took_part}
        if len(places) == 1 and took_part[0].state == "raised" and not took_part[0].lost_connection:
            return KEPT  # all failed at the same place, so nobody is left waiting in the group
        try:
            self._remake()
        except Exception:
            self._processes.close()
            return LOST
        return REMADE

    def _remake(self) -> None:
        """Make the default process group again, on all ranks together."""
        self._generation += 1
        number = next(self._numbers)
        everyone = list(range(self.size))
        with contextlib.closing(InterruptFlag()) as unheard:  # half done, it would cost the ranks their variables
            gathering = Gathering(self._processes.handles, everyone, number, REMAKE_TIMEOUT, Transcript([]), unheard)
            for handle in self._processes.handles:
                handle.channel.send({"do": "remake", "cell": number, "generation": self._generation})
            outcomes = gathering.run()
        if any(outcome.state != "finished" for outcome in outcomes):
            raise RuntimeError("the process group could not be made again")
        self._group_lost = False


def _texts(outcomes: Iterable[Outcome]) -> dict[int, str]:
    return {outcome.rank: outcome.value for outcome in outcomes if outcome.value is not None}


def _values(outcomes: Iterable[Outcome]) -> list[Any]:
    return [pickle.loads(outcome.blob) for outcome in outcomes]


def launch(
    function: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    nodes: int = 1,
    backend: str = "auto",
    timeout: float | None = DEFAULT_TIMEOUT,
    show_output: bool = True,
    **kwargs: Any,
) -> list[Any]:
    """Run ``function(*args, **kwargs)`` on every rank of a new world; return what each returned, rank 0 first.

    The function may be defined in a notebook cell; a parameter of its own that is called as one of launch's gets its
    value by its place, or from ``functools.partial``. Like a cell on ranks, it finds ``rank``, ``world_size``,
    ``local_rank``, ``device``, ``torch`` and ``dist``; variables of the notebook by these names do not reach it. The
    world ends with the call.

    Args:
        ranks: world size.
        nodes: present the ranks as this many nodes.
        backend: "auto", "gloo" or "nccl".
        timeout: seconds; None or 0 for no limit.
        show_output: show what the ranks print (in rank order, when all are done).

    Raises:
        TypeError: no function.
        RankError: a rank raised or was killed; the one that failed first is first in ``failures``.
        RankTimeout: the time-out passed; ``report`` says which rank waited where, for whom.
        RanksInterrupted: the reader stopped it.
    """
    view = default_view(live=False) if show_output else View()
    with World(ranks, nodes, backend, timeout=timeout) as world:
        return world.run_last(function, args, kwargs, view)


def preload(*modules: str) -> None:
    """Import these modules once, so that ranks that are started later need not, each for itself."""
    starters.starter(starters.default_method()).preload(*modules)


def hidden_module(folder: Path | None = None) -> str:
    """One sentence where a module or package of this folder has the name of one of ours; "" where there is none.

    Args:
        folder: where the notebook runs.
    """
    folder = folder or Path(os.getcwd())
    for ours in sorted(map(Path, OURS), key=lambda package: package.name != __name__.partition(".")[0]):
        for own in (folder / f"{ours.name}.py", folder / ours.name / "__init__.py"):
            if own.exists() and own.parent.resolve() != ours.resolve():
                what = own.name if own.name != "__init__.py" else f"{ours.name}/"
                return (
                    f"The {what} of this folder has the name of a package that cells on ranks need, and "
                    f"`import {ours.name}` finds only one of them: give yours another name, then restart the kernel."
                )
    return ""
