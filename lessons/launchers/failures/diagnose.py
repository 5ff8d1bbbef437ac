"""Runs a broken program on ranks and says how it ended: which rank, in which line, with which words.

    diagnose.run("../scripts/failures/one_barrier.py", ranks=2)

The ranks find what torchrun gives its workers: the same environment variables, and a store that outlives them, at
MASTER_ADDR and MASTER_PORT. So the same program fails in the same way under ``torchrun --nproc-per-node 2``; it only
starts in milliseconds here, as a copy of a process that has imported torch (``warm_process``).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import re
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons.launchers import processes, warm_process
from utils.ranks.failures import how_it_ended
from utils.ranks.output import said_alike, text_table

DEFAULT_TIMEOUT = 110.0
ENDING = 0.3  # seconds that ranks get to notice how others have ended
_STOPPING = 1.0  # seconds in which those that are stopped write down where they were
_CODE_WIDTH, _WORDS_WIDTH = 44, 100
_STACK = re.compile(r"^(frame #|Exception raised from|<omitting python frames>|\s*$)")
# What torch's log lines hold beside what they say: where in torch's source, when, and which process.
_NOISE = (
    (re.compile(r"^\[rank\d+\]:"), ""),
    (re.compile(r"^\[[A-Z]\d{4} [\d:.]+ \w+\.\w+:\d+\] "), ""),
    (re.compile(r"\[?/[\w/.-]+/gloo/[\w/]+\.(?:cc|h):\d+\]? ?"), ""),
    (re.compile(r"\[c10d(?: - debug)?\] "), ""),
    (re.compile(r"([\w.\]-]:|\(\S+, |\bport(?::| =) )\d{4,5}(?:\$\d+)?\b"), r"\1PORT"),
    (re.compile(r"\bfd=\d+"), "fd=N"),
    (re.compile(r", TensorDeviceTypes=TensorOptions\(.*?\(nullopt\)\)\)"), ")"),
    (re.compile(r"(\.)(Collectives differ)"), r"\1 \2"),
    (re.compile(r"(?<=\w)vs (?=\w)"), " vs "),
    (re.compile(r" {2,}"), " "),
)


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
            Needs Linux and root: see ``isolation.why_no_files()``.
        memory: (rank, bytes): this rank may have so many bytes of memory, and no more. Needs a memory control group:
            see ``isolation.why_no_limit()``.
        history: read torch's flight recorder at the end. It takes a second: to name lines, torch imports its compiler.
        until: ranks that are waited for; when they have ended, those that still run are stopped. (): all.
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
    until: Sequence[int] = ()
    store: Any = None


def run(program: str | Path, *args: str, timeout: float = DEFAULT_TIMEOUT, **options: Any) -> Endings:
    """Run a program on fresh ranks, let each rank come to its own end, and say how each ended. Never raises for it.

    Args:
        program, args, options: those of ``Case``.
        timeout: seconds; a rank that has not ended then is shown as "still running".

    Raises:
        FileNotFoundError: there is no such program.
    """
    return run_all([Case(program, args, **options)], timeout)[0]


def run_all(cases: Sequence[Case], timeout: float = DEFAULT_TIMEOUT) -> list[Endings]:
    """Run several programs at the same time, each in a world of its own: most of them only wait for a time-out."""
    started: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        last, stores = [], []
        try:
            for number, case in enumerate(cases):
                stores.append(case.store or _new_store())
                for rank in range(case.ranks):
                    started[number, rank] = _start(case, rank, stores[-1].port, f"{folder}/{number}.{rank}")
                last += [(number, rank) for rank in case.until or range(case.ranks)]
            processes.watch(started, last, timeout)
            processes.watch(started, started, ENDING)  # the others notice
            stopped = [who for who, process in started.items() if process.poll() is None]
            for who in stopped:
                started[who].send_signal(signal.SIGINT)
            processes.watch(started, started, _STOPPING)  # (who waits inside torch does not hear it)
        finally:
            for process in started.values():
                process.kill()
                process.wait()
        codes = {who: None if who in stopped else process.returncode for who, process in started.items()}
        ended = {(n, rank): _ending(rank, f"{folder}/{n}.{rank}", code) for (n, rank), code in codes.items()}
    return [Endings(tuple(end for (n, _), end in ended.items() if n == number)) for number in range(len(cases))]


def _start(case: Case, rank: int, port: int, log: str) -> subprocess.Popen[bytes]:
    program = Path(case.program).resolve()
    if not program.is_file():
        raise FileNotFoundError(f"there is no program {program.name} in {program.parent}")
    env = case.env if isinstance(case.env, Mapping) else case.env[rank * case.nodes // case.ranks]
    memory = case.memory[1] if case.memory and case.memory[0] == rank else None
    told = [str(program), case.args, [rank, case.ranks, case.nodes, port], env, case.files, memory, case.history]
    command = [_python(), Path(__file__).with_name("rank_run.py"), json.dumps([*told, f"{log}.end"])]
    with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
        files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        return subprocess.Popen(command, env=processes.clean_environment(), start_new_session=True, **files)


@functools.cache
def _python() -> Path:
    """One for all runs; it ends with this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(warm_process.python(warm_process.TORCH, processes.clean_environment()))


def _new_store() -> Any:
    """What torchrun's agent holds for its workers."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


# ---------------------------------------------------------------------- from a rank's files
def _ending(rank: int, log: str, exit_code: int | None) -> Ending:
    """``exit_code``: None for a rank that we had to stop."""
    said = tuple(plain(line) for line in processes.read(f"{log}.err").splitlines() if not _STACK.match(line))
    note = json.loads(processes.read(f"{log}.end") or "{}")
    how = note.get("how") or ("finished" if exit_code == 0 else how_it_ended(exit_code))
    words = next(filter(None, map(plain, note.get("words", "").splitlines())), "")
    return Ending(
        rank,
        "still running" if exit_code is None else how,
        note.get("line"),
        note.get("code", ""),
        words,
        processes.read(f"{log}.out"),
        said,
        tuple((what, line) for what, line in note.get("collectives", ())),
    )


def plain(line: str) -> str:
    """A line of torch's log or of an error, without when and where in torch's source, and without ports."""
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()
