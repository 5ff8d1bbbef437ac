"""Runs a broken program on ranks and says how it ended: which rank, in which line, with which words.

    diagnose.run("../scripts/failures/one_barrier.py", ranks=2)

The ranks find what torchrun gives its workers: the same environment variables, and a store that outlives them, at
MASTER_ADDR and MASTER_PORT. So the same program fails in the same way under ``torchrun --nproc-per-node 2``; it only
starts in milliseconds here. As with torchrun, a rank that has ended takes its connections with it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons.launchers.failures.rank_run import RankRun
from lessons.launchers.processes import read
from utils.ranks import RankError, RankTimeout, launch
from utils.ranks.failures import how_it_ended
from utils.ranks.output import said_alike, text_table

DEFAULT_TIMEOUT = 110.0
_CODE_WIDTH, _WORDS_WIDTH = 44, 100
_STACK = re.compile(r"^(frame #|Exception raised from|<omitting python frames>|\s*$)")
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
        program: path of a script as one would give it to torchrun.
        args: its arguments.
        timeout: seconds; a rank that has not ended then is shown as "still running".
        options: those of ``Case``: ``ranks``, ``nodes``, ``env``, ``files``, ``memory``, ``history``, ``until``,
            ``store``.

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
                workers.append(RankRun(*what, until=[f"{folder}/{number}.{one}.end" for one in case.until]))
        killed: dict[int, str] = {}
        try:
            launch(_Runs(workers), ranks=len(workers), backend="gloo", timeout=timeout, show_output=False)
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
class _Runs:
    """The ranks of all cases: each process becomes the one of its number."""

    runs: Sequence[RankRun]

    def __call__(self) -> None:
        self.runs[int(os.environ["RANK"])]()


# ---------------------------------------------------------------------- from a rank's files
def _ending(run: RankRun, killed: str | None) -> Ending:
    raw = read(f"{run.log}.err").splitlines()
    log = tuple(plain(line) for line in raw if not _STACK.match(line))
    rank, output = run.shape[0], read(f"{run.log}.out")
    if end := read(f"{run.log}.end"):
        note = json.loads(end)
        collectives = tuple((what, line) for what, line in note["collectives"])
        words = next(filter(None, map(plain, note.get("words", "").splitlines())), "")
        return Ending(rank, note["how"], note.get("line"), note.get("code", ""), words, output, log, collectives)
    if killed == how_it_ended(0):
        killed = "finished"  # it left by os._exit
    return Ending(rank, (killed or "still running").split(" (")[0], output=output, log=log)


def plain(line: str) -> str:
    """A line of torch's log or of an error, without when and where in torch's source, and without ports."""
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()
