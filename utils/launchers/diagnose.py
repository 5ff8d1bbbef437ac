"""Runs a broken program on ranks and says how it ended: which rank, in which line, with which words.

    diagnose.run("../scripts/failures/one_barrier.py", ranks=2)

The ranks find what torchrun gives its workers: the same environment variables, and a store that outlives them, at
MASTER_ADDR and MASTER_PORT. So the same program fails in the same way under ``torchrun --nproc-per-node 2``; it only
starts in milliseconds here. As with torchrun, a rank that has ended takes its connections with it.
"""

from __future__ import annotations

import itertools
import json
import linecache
import os
import pickle
import re
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.ranks import RankError, RankTimeout, launch
from utils.ranks.failures import how_it_ended
from utils.ranks.words import said_alike, text_table

DEFAULT_TIMEOUT = 60.0
#: Seconds from an error to closed connections: Python needs a moment to end a process.
_ENDING = 0.3
_CODE_WIDTH, _WORDS_WIDTH = 44, 100

# What torch's log lines hold beside what they say: where in torch's source, when, and which process.
_NOISE = (
    (re.compile(r"^\[rank\d+\]:"), ""),
    (re.compile(r"^\[[A-Z]\d{4} [\d:.]+ \w+\.\w+:\d+\] "), ""),
    (re.compile(r"\[?/[\w/.-]+/gloo/[\w/]+\.(?:cc|h):\d+\]? ?"), ""),
    (re.compile(r"\[c10d(?: - debug)?\] "), ""),
    (re.compile(r"(\[[\w.:]+\]):\d{1,5}(?:\$\d+)?\b"), r"\1:PORT"),
    (re.compile(r"([\w.-]+):\d{4,5}\b"), r"\1:PORT"),
    (re.compile(r"\((\S+), \d{4,5}\)"), r"(\1, PORT)"),
    (re.compile(r"\bport(:| =) \d{4,5}"), r"port\1 PORT"),
    (re.compile(r"\bfd=\d+"), "fd=N"),
    (re.compile(r", TensorDeviceTypes=TensorOptions\(.*?\(nullopt\)\)\)"), ")"),
    (re.compile(r"(\.)(Collectives differ)"), r"\1 \2"),
    (re.compile(r"(?<=\w)vs (?=\w)"), " vs "),
    (re.compile(r" {2,}"), " "),
)
_STACK = re.compile(r"^(frame #|Exception raised from|<omitting python frames>|\s*$)")


@dataclass(frozen=True)
class Ending:
    """How the program ended on one rank.

    Attributes:
        rank: which one.
        how: "finished", the name of an exception, "killed by SIGKILL", or "still running" when the time was over.
        line: number of the program's line that the exception came from; None if there was none.
        code: that line.
        words: the first line of the exception's message, without ports and places in torch's source.
        output: what the program printed.
        log: what torch and the program wrote to stderr, a line each, without stack frames, times, ports.
        collectives: with ``history``, what torch's flight recorder holds: each collective that the program has begun on
            this rank, as its name and the program's line. Empty if the rank was killed.
    """

    rank: int
    how: str
    line: int | None = None
    code: str = ""
    words: str = ""
    output: str = ""
    log: tuple[str, ...] = ()
    collectives: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Endings:
    """How the program ended on all ranks; shows itself as a table, and then what ranks said and printed."""

    ranks: tuple[Ending, ...]

    def __getitem__(self, rank: int) -> Ending:
        return self.ranks[rank]

    def __repr__(self) -> str:
        rows = [("rank", "how it ended", "where")]
        for end in self.ranks:
            where = f"line {end.line}: {textwrap.shorten(end.code, _CODE_WIDTH, placeholder=' …')}" if end.line else ""
            rows.append((str(end.rank), end.how, where))
        lines = text_table(rows)
        for words, who in said_alike((end.rank, end.words) for end in self.ranks):
            lines += textwrap.wrap(f"{who}: {words}", _WORDS_WIDTH, subsequent_indent="    ")
        for output, who in said_alike((end.rank, end.output.rstrip()) for end in self.ranks):
            lines += [f"{who} printed: {line}" for line in output.splitlines()]
        return "\n".join(lines)

    def flight_recorder(self) -> str:
        """The collectives of all ranks side by side, in the order in which each rank has begun them."""
        begun = [[f"line {line}: {what}" for what, line in end.collectives] for end in self.ranks]
        rows = list(itertools.zip_longest(*begun, fillvalue="–"))
        names, *lines = text_table([[f"rank {end.rank}" for end in self.ranks], *rows])
        differ = ["   ← they differ" if len(set(row)) > 1 else "" for row in rows]
        numbered = enumerate(zip(lines, differ, strict=True), start=1)
        return "\n".join([f"    {names}", *(f"{number:>2}  {line}{mark}" for number, (line, mark) in numbered)])


@dataclass(frozen=True)
class Case:
    """A program and how to run it.

    Args:
        program: path of a script as one would give it to torchrun.
        args: its arguments.
        ranks, nodes: how many of each.
        env: environment variables for all ranks, or a list with those of each node; they win over what torchrun sets.
        files: path → text: the ranks (only they) see these files with another content, for example "/etc/hosts".
            Needs Linux and root: see ``private.why_no_files()``.
        memory: (rank, bytes): this rank may have so many bytes of memory, and no more. Needs a memory control group:
            see ``private.why_no_limit()``.
        history: read torch's flight recorder at the end. It takes a second: to name lines, torch imports its compiler.
        store: a ``dist.TCPStore`` that this process holds, for runs that follow each other; None: a new one.
    """

    program: str | Path
    args: Sequence[str] = ()
    ranks: int = 2
    nodes: int = 1
    env: Mapping[str, str] | Sequence[Mapping[str, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    memory: tuple[int, int] | None = None
    history: bool = False
    store: Any = None


def run(program: str | Path, *args: str, timeout: float = DEFAULT_TIMEOUT, **options: Any) -> Endings:
    """Run a program on fresh ranks, let each rank come to its own end, and say how each ended. Never raises for it.

    Args:
        program: path of a script as one would give it to torchrun.
        args: its arguments.
        timeout: seconds; a rank that has not ended then is shown as "still running".
        options: those of ``Case``: ``ranks``, ``nodes``, ``env``, ``files``, ``memory``, ``history``, ``store``.

    Raises:
        FileNotFoundError: there is no such program.
    """
    return run_all([Case(program, args, **options)], timeout)[0]


def run_all(cases: Sequence[Case], timeout: float = DEFAULT_TIMEOUT) -> list[Endings]:
    """Run several programs at the same time, each in a world of its own: most of them only wait for a time-out.

    A program in which a rank is killed must run alone: the death of one rank stops all.
    """
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        workers, stores = [], []
        for number, case in enumerate(cases):
            program = Path(case.program).resolve()
            if not program.is_file():
                raise FileNotFoundError(f"there is no program {program.name} in {program.parent}")
            stores.append(case.store or _new_store())
            told = {"MASTER_PORT": str(stores[-1].port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            for rank in range(case.ranks):
                node = rank * case.nodes // case.ranks
                env = told | dict(case.env if isinstance(case.env, Mapping) else case.env[node])
                memory = case.memory[1] if case.memory and case.memory[0] == rank else None
                log = f"{folder}/{number}.{rank}"
                shape = (rank, case.ranks, case.nodes)
                what = (str(program), tuple(case.args), shape, env, dict(case.files), memory, case.history, log)
                workers.append(_Worker(*what))
        killed: dict[int, str] = {}
        try:
            launch(_Workers(workers), ranks=len(workers), backend="gloo", timeout=timeout, show_output=False)
        except RankTimeout:
            pass
        except RankError as error:
            killed = {failure.rank: failure.message for failure in error.failures}
        ends = iter([_ending(worker, killed.get(number)) for number, worker in enumerate(workers)])
        return [Endings(tuple(itertools.islice(ends, case.ranks))) for case in cases]


def _new_store() -> Any:
    """What torchrun's agent holds for its workers."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@dataclass(frozen=True)
class _Worker:
    """What one rank does. It writes its end to files that begin with ``log``, because it may be killed."""

    program: str
    args: Sequence[str]
    shape: tuple[int, int, int]  # rank, world size, nodes
    env: Mapping[str, str]
    files: Mapping[str, str]
    memory: int | None
    history: bool
    log: str

    def __call__(self) -> None:
        import torch.distributed as dist

        from utils.launchers import private
        from utils.ranks import groups

        before, pipes = sys.stdout, [os.dup(1), os.dup(2)]  # kept open: the rank listens at their other ends
        for stream, name in ((1, "out"), (2, "err")):  # torch writes there, not to Python's streams
            os.dup2(os.open(f"{self.log}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), stream)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (it stays)
        dist.destroy_process_group()  # the course's own; the program makes one
        groups.set_environment(*self.shape, port=0)
        os.environ.update(self.env)
        dist.set_debug_level_from_env()
        dist.init_process_group = _init_process_group
        sys.argv = [self.program, *self.args]
        for path, text in self.files.items():
            private.replace_file(path, text)
        if self.memory:
            private.limit_memory(self.memory)
        note: dict[str, Any] = {"how": "finished"}
        try:
            try:
                _run_as_main(self.program)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: nothing may cut short how it ended
        except SystemExit as end:
            if end.code is not None and end.code != 0:
                words = {} if isinstance(end.code, int) else self._note(end)
                note = words | {"how": how_it_ended(end.code if isinstance(end.code, int) else 1)}
        except KeyboardInterrupt as stop:  # so a rank is stopped when the time is over
            note = self._note(stop) | {"how": "still running"}
        except BaseException as error:
            note = self._note(error)
            del error
        sys.stdout.flush()
        sys.stdout = before
        for stream, pipe in enumerate(pipes, start=1):
            os.dup2(pipe, stream)
        note["collectives"] = self._collectives() if self.history else []
        Path(f"{self.log}.end").write_text(json.dumps(note))
        if "words" in note:
            time.sleep(_ENDING)
        with suppress(Exception):
            dist.destroy_process_group()  # a process that ends closes its connections

    def _note(self, error: BaseException) -> dict[str, Any]:
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == self.program]
        line = lines[-1] if lines else None
        code = linecache.getline(self.program, line).strip() if line else ""
        return {"how": type(error).__name__, "line": line, "code": code, "words": str(error)}

    def _collectives(self) -> list[tuple[str, int]]:
        """What the flight recorder holds of the program's own collectives."""
        from torch._C._distributed_c10d import _dump_fr_trace

        found = []
        for entry in pickle.loads(_dump_fr_trace())["entries"]:
            lines = [frame["line"] for frame in entry["frames"] if frame["filename"] == self.program]
            if lines:
                found.append((entry["profiling_name"].removeprefix("gloo:"), lines[0]))
        return found


@dataclass(frozen=True)
class _Workers:
    """All workers of all cases: each process becomes the one of its number."""

    workers: Sequence[_Worker]

    def __call__(self) -> None:
        self.workers[int(os.environ["RANK"])]()


def _run_as_main(program: str) -> None:
    """As ``python program`` would: the folder of the program comes first in sys.path."""
    import runpy

    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


def _init_process_group(backend: str | None = None, **options: Any) -> None:
    """torch's own, with a store found through MASTER_ADDR and MASTER_PORT (in a rank of the course it is another)."""
    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    timeout = options.get("timeout") or default_pg_timeout
    if options.get("store") is None and options.get("init_method") in (None, "env://"):
        store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        options |= {"store": dist.PrefixStore("default_pg", store), "rank": rank, "world_size": world_size}
        options.pop("init_method", None)
    dist.distributed_c10d.init_process_group(backend, **options)


def _ending(worker: _Worker, killed: str | None) -> Ending:
    raw = _read(f"{worker.log}.err").splitlines()
    log = tuple(plain(line) for line in raw if not _STACK.match(line))
    rank, output = worker.shape[0], _read(f"{worker.log}.out")
    if end := _read(f"{worker.log}.end"):
        note = json.loads(end)
        collectives = tuple((what, line) for what, line in note["collectives"])
        words = next(filter(None, map(plain, note.get("words", "").splitlines())), "")
        return Ending(rank, note["how"], note.get("line"), note.get("code", ""), words, output, log, collectives)
    if killed == how_it_ended(0):
        killed = "finished"  # it left by os._exit
    return Ending(rank, (killed or "still running").split(" (")[0], output=output, log=log)


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text(errors="replace") if file.exists() else ""


def plain(line: str) -> str:
    """A line of torch's log or of an error, without when and where in torch's source, and without ports."""
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()
