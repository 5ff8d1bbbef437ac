"""Runs a broken program on ranks and says how it ended: which rank, in which line, with which words.

    diagnose.run("../scripts/failures/one_barrier.py", ranks=2)

The ranks find what torchrun gives its workers: the same environment variables, and a store that outlives them, at
MASTER_ADDR and MASTER_PORT. So the same program fails in the same way under ``torchrun --nproc-per-node 2``; it only
starts in milliseconds here. As with torchrun, a rank that has ended takes its connections with it.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons.launchers.failures.endings import Ending, Endings
from lessons.launchers.failures.log_lines import plain
from lessons.launchers.failures.rank_run import RankRun, ending
from utils.ranks import RankError, RankTimeout, launch

__all__ = ["Case", "Ending", "Endings", "plain", "run", "run_all"]

DEFAULT_TIMEOUT = 110.0


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
        ends = iter([ending(worker, killed.get(number)) for number, worker in enumerate(workers)])
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
