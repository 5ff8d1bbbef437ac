"""The programs of scripts/frameworks/, each started with its framework's own launcher, watched and ended.

``run("with_horovod.py", workers=2)`` starts ``horovodrun -np 2 …`` and returns what came of it: the losses and weights
that the program has written, how the launcher ended, what each worker printed, which files were left. ``kill_at=10``
kills one worker after its tenth step, which shows what happens then. No process is left.

torchrun's part is done by ``torchrun``; TensorFlow's processes have no launcher, ``tf_roles`` starts them.
mpiexec and horovodrun get a network of their own where the system allows it, for they listen on all network cards.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessons.launchers import torchrun
from lessons.launchers.frameworks import tf_roles
from lessons.launchers.frameworks.results import RunResult, Worker
from lessons.launchers.frameworks.watch import done_by_all, for_torchrun, output_files, split_options, warm_torch, watch

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "frameworks"
TIMEOUT = 90.0
#: Seconds between two steps of a run in which a worker is killed: time to kill it before the training is over.
PAUSE = 0.1
#: Seconds that TensorFlow's other processes get when one has failed: a chief goes on without a worker.
GRACE = 30.0


def run(
    program: str | Path, workers: int = 2, kill_at: int | None = None, by: str | None = None, timeout: float = TIMEOUT
) -> RunResult:
    """Run one of the programs with its launcher.

    Args:
        program: a name in scripts/frameworks/, or the path of an edited copy (its name decides which launcher).
        workers: how many (mirrored: replicas in one process; parameter server: workers beside chief and ps).
        kill_at: SIGKILL for worker 1, after it has done so many steps.
        by: another launcher than its own: "mpiexec" for a program of torchrun.
        timeout: seconds for everything.
    """
    path = Path(program) if Path(program).is_absolute() else SCRIPTS / program
    with tempfile.TemporaryDirectory(prefix="frameworks-") as folder:
        kept, logs = Path(folder, "kept"), Path(folder, "logs")
        kept.mkdir(), logs.mkdir()
        args = [str(kept)] if kill_at is None else [str(kept), str(PAUSE)]
        if by == "mpiexec":
            ran = _launched("mpiexec", [SCRIPTS / "as_torchrun.py", path, *args], workers, kill_at, logs, timeout)
        elif "ddp" in path.stem:
            ran = _torchrun(path, args, workers, kill_at, timeout)
        elif "mpi" in path.stem or "horovod" in path.stem:
            launcher = "mpiexec" if "mpi" in path.stem else "horovodrun"
            ran = _launched(launcher, [path, *args], workers, kill_at, logs, timeout)
        elif "mirrored" in path.stem:
            ran = _tensorflow(path, [*args[:1], str(workers)], 0, None, timeout)
        else:
            ran = _tensorflow(path, args, workers, kill_at, timeout)
        files = {str(file.relative_to(kept)): file.stat().st_size for file in sorted(kept.rglob("*")) if file.is_file()}
        modes = {name: stat.filemode((kept / name).stat().st_mode) for name in files}
        results = [name for name in files if name.endswith(".json")]
        found = json.loads(Path(kept, results[0]).read_text()) if results else {}
        command = ran.command.replace(str(kept), "FOLDER").replace(f"{path.parent}{os.sep}", "")
        command = command.replace(f"{SCRIPTS}{os.sep}", "").replace(str(PAUSE), "PAUSE")
        return RunResult(command, ran.code, ran.workers, ran.launcher, found, files, modes)


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """torch and TensorFlow are imported once for all runs in this block, which are then copies of those that did."""
    with warm_torch(), tf_roles.warm():
        yield


def mpiexec(*arguments: str | Path, timeout: float = TIMEOUT) -> str:
    """What ``mpiexec …`` prints, in the order of ranks (mpiexec itself mixes the lines of all)."""
    with tempfile.TemporaryDirectory(prefix="mpiexec-") as folder:
        before, rest = split_options(arguments)
        ran = watch(["mpiexec", *before, *output_files(Path(folder)), *rest], "PMI_RANK", None, Path(folder), timeout)
        lines = [line for worker in ran.workers for line in worker.output.splitlines()]
        return "\n".join(lines) if ran.code == 0 else f"exit code {ran.code}\n{ran.launcher}"


def horovodrun(*arguments: str | Path, timeout: float = TIMEOUT) -> str:
    """What ``horovodrun …`` itself prints, and its workers."""
    with tempfile.TemporaryDirectory(prefix="horovodrun-") as folder:
        command = ["horovodrun", "--gloo", "--disable-cache", *map(str, arguments)]
        return watch(command, "HOROVOD_RANK", None, Path(folder), timeout).launcher


def edited(program: str, changes: Mapping[str, str], folder: str | Path) -> Path:
    """A copy of a program with some pieces of text replaced; a line of which nothing is left goes.

    Raises:
        ValueError: a piece is not in the program, or more than once.
    """
    source = (SCRIPTS / program).read_text(encoding="utf-8")
    for old, new in changes.items():
        if source.count(old) != 1:
            raise ValueError(f"{program} has {old!r} {source.count(old)} times, not once")
        begin = source.index(old)
        line = source[source.rfind("\n", 0, begin) + 1 : source.index("\n", begin) + 1]
        changed = line.replace(old, new)
        source = source.replace(line, changed if changed.split("#")[0].strip() else "", 1)
    copy = Path(folder, program)
    copy.write_text(source, encoding="utf-8")
    return copy


# ---------------------------------------------------------------------- the launchers
def _torchrun(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> RunResult:
    with torchrun.agents(path, *args, nodes=1, per_node=workers, **for_torchrun()) as agents:
        agents.start(0)
        try:
            if kill_at is not None:
                agents.wait_for(done_by_all(kill_at), timeout)
                agents.kill_worker(1)
            result = agents.wait(timeout)
        except torchrun.AgentsFailed as failure:
            result = failure.run
        command = ["torchrun", f"--nproc-per-node={workers}", str(path), *args]
    agent = result.agents[0]
    ended = tuple(Worker(f"worker {worker.rank}", worker.output, worker.errors) for worker in agent.workers)
    return RunResult(" ".join(command), agent.exit_code, ended, agent.log)


def _launched(
    launcher: str, program: Sequence[str | Path], workers: int, kill_at: int | None, logs: Path, timeout: float
) -> RunResult:
    """mpiexec and horovodrun."""
    python = ["python", *map(str, program)]
    if launcher == "mpiexec":
        typed, quiet, rank = ["mpiexec", "-n", str(workers)], ["-print-all-exitcodes", *output_files(logs)], "PMI_RANK"
    else:
        typed, rank = ["horovodrun", "-np", str(workers), "--gloo"], "HOROVOD_RANK"
        loopback = "lo" if sys.platform == "linux" else "lo0"
        quiet = ["--disable-cache", "--network-interfaces", loopback, "--output-filename", str(logs)]
    ran = watch([*typed, *quiet, *python], rank, kill_at, logs, timeout)
    return RunResult(" ".join([*typed, *python]), ran.code, ran.workers, ran.launcher)


def _tensorflow(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> RunResult:
    servers: dict[str, Any] = {"chief": True, "ps": 1, "evaluator": kill_at is None} if "server" in path.stem else {}
    # (the chief of a parameter server prints every tenth step, when all workers have done their parts)
    sign = "" if kill_at is None else f"step {kill_at}" if servers else done_by_all(kill_at)
    kill = tf_roles.Kill("worker", 1, sign) if sign else None
    ended = tf_roles.run(path, *args, workers=workers, timeout=timeout, grace=GRACE, kill=kill, **servers)
    names = [f"{one.role} {one.index}" if one.role in ("worker", "ps") else one.role for one in ended]
    all_of_them = tuple(Worker(name, one.output, "", one.code) for name, one in zip(names, ended, strict=True))
    command = ["TF_CONFIG=…"] * (workers > 0) + ["python", str(path), *args]
    return RunResult(" ".join(command), ended[0].code, all_of_them)
