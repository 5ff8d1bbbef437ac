"""The programs of scripts/frameworks, each started with its framework's own launcher, watched and ended.

``run("with_horovod.py", workers=2)`` starts ``horovodrun -np 2 …`` and returns what came of it: the losses and weights
that the program has written, how the launcher ended, what each worker printed, which files were left. ``kill_at=10``
kills one worker after its tenth step, which is how the lecture finds out what happens then. No process is left.

torchrun's part is done by ``torchrun``; TensorFlow's processes have no launcher, ``tf_roles`` starts them.
mpiexec and horovodrun get a network of their own where the system allows it, for they listen on all network cards.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from utils.launchers import namespaces, processes, tf_roles, torchrun

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "frameworks"
MARK = "COURSE_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
TIMEOUT = 90.0
#: Seconds between two steps of a run in which a worker is killed: time to kill it before the training is over.
PAUSE = 0.1
#: Seconds that TensorFlow's other processes get when one has failed: a chief goes on without a worker.
GRACE = 30.0
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception)\b.*)", re.MULTILINE)
_TOLD = ("PMI_", "MPI_", "MPIR_", "HYDRA_", "HOROVOD_", "TF_CONFIG")


@dataclass(frozen=True)
class Worker:
    """One of the processes that a launcher has started.

    Args:
        name: "worker 0", "chief", ….
        output: what it printed.
        errors: what it wrote to stderr (TensorFlow: all is in ``output``).
        code: its exit code, where somebody tells it; -9: SIGKILL.
    """

    name: str
    output: str
    errors: str = ""
    code: int | None = None

    @property
    def steps(self) -> int:
        """How many steps it has said to have done."""
        return len(re.findall(r"^step \d+$", self.output, re.MULTILINE))

    @property
    def last_words(self) -> str:
        """The exception it ended with, in one line; empty: it was ended before it could say anything."""
        found = _EXCEPTION.findall(self.errors or self.output)
        return found[-1] if found else ""


@dataclass(frozen=True)
class Ran:
    """What came of a run.

    Args:
        command: what one would type. TensorFlow: what each of the processes was started with.
        code: exit code of the launcher, or of the process that leads; None: it had to be ended.
        workers: in the order of their numbers.
        launcher: what the launcher itself said.
        found: what the program has written: "losses", "weights" (see ``utils.training.same_training``), and facts.
        files: names of all files that it left, and their sizes in bytes.
        modes: their permissions, such as "-rw-r--r--".
    """

    command: str
    code: int | None
    workers: tuple[Worker, ...]
    launcher: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)

    @property
    def losses(self) -> list[float]:
        """The loss of each step, over the whole batch."""
        if "losses" not in self.found:
            said = "\n".join(
                filter(None, [self.launcher, *(worker.errors or worker.output for worker in self.workers)])
            )
            raise RuntimeError(f"{self.command} has not finished its training (exit code {self.code}):\n{said[-2000:]}")
        return self.found["losses"]

    @property
    def weights(self) -> list[Any]:
        """The final weights, as numpy arrays in the shapes of ``utils.training.same_training.weights``."""
        import numpy

        self.losses  # noqa: B018 (says why, if there are none)
        return [numpy.array(array, dtype=numpy.float32) for array in self.found["weights"]]


def run(
    program: str | Path, workers: int = 2, kill_at: int | None = None, by: str | None = None, timeout: float = TIMEOUT
) -> Ran:
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
        return Ran(command, ran.code, ran.workers, ran.launcher, found, files, modes)


def mpiexec(*arguments: str | Path, timeout: float = TIMEOUT) -> str:
    """What ``mpiexec …`` prints, in the order of ranks (mpiexec itself mixes the lines of all)."""
    with tempfile.TemporaryDirectory(prefix="mpiexec-") as folder:
        before, rest = _split(arguments)
        ran = _watch(["mpiexec", *before, *_files(Path(folder)), *rest], "PMI_RANK", None, Path(folder), timeout)
        lines = [line for worker in ran.workers for line in worker.output.splitlines()]
        return "\n".join(lines) if ran.code == 0 else f"exit code {ran.code}\n{ran.launcher}"


def horovodrun(*arguments: str | Path, timeout: float = TIMEOUT) -> str:
    """What ``horovodrun …`` itself prints, and its workers."""
    with tempfile.TemporaryDirectory(prefix="horovodrun-") as folder:
        command = ["horovodrun", "--gloo", "--disable-cache", *map(str, arguments)]
        return _watch(command, "HOROVOD_RANK", None, Path(folder), timeout).launcher


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


def _done_by_all(step: int) -> str:
    """What a synchronous worker prints only after every other one has done a step."""
    return f"step {step + 1}"


# ---------------------------------------------------------------------- the launchers
def _torchrun(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> Ran:
    with torchrun.agents(path, *args, nodes=1, per_node=workers) as agents:
        agents.start(0)
        try:
            if kill_at is not None:
                agents.wait_for(_done_by_all(kill_at), timeout)
                agents.kill_worker(1)
            result = agents.wait(timeout)
        except torchrun.AgentsFailed as failure:
            result = failure.run
        command = ["torchrun", f"--nproc-per-node={workers}", str(path), *args]
    agent = result.agents[0]
    ended = tuple(Worker(f"worker {worker.rank}", worker.output, worker.errors) for worker in agent.workers)
    return Ran(" ".join(command), agent.exit_code, ended, agent.log)


def _launched(
    launcher: str, program: Sequence[str | Path], workers: int, kill_at: int | None, logs: Path, timeout: float
) -> Ran:
    """mpiexec and horovodrun."""
    python = ["python", *map(str, program)]
    if launcher == "mpiexec":
        typed, quiet, rank = ["mpiexec", "-n", str(workers)], ["-print-all-exitcodes", *_files(logs)], "PMI_RANK"
    else:
        typed, rank = ["horovodrun", "-np", str(workers), "--gloo"], "HOROVOD_RANK"
        loopback = "lo" if sys.platform == "linux" else "lo0"
        quiet = ["--disable-cache", "--network-interfaces", loopback, "--output-filename", str(logs)]
    ran = _watch([*typed, *quiet, *python], rank, kill_at, logs, timeout)
    return Ran(" ".join([*typed, *python]), ran.code, ran.workers, ran.launcher)


def _tensorflow(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> Ran:
    servers: dict[str, Any] = {"chief": True, "ps": 1, "evaluator": kill_at is None} if "server" in path.stem else {}
    # (the chief of a parameter server prints every tenth step, when all workers have done their parts)
    sign = "" if kill_at is None else f"step {kill_at}" if servers else _done_by_all(kill_at)
    kill = tf_roles.Kill("worker", 1, sign) if sign else None
    ended = tf_roles.run(path, *args, workers=workers, timeout=timeout, grace=GRACE, kill=kill, **servers)
    names = [f"{one.role} {one.index}" if one.role in ("worker", "ps") else one.role for one in ended]
    all_of_them = tuple(Worker(name, one.output, "", one.code) for name, one in zip(names, ended, strict=True))
    command = ["TF_CONFIG=…"] * (workers > 0) + ["python", str(path), *args]
    return Ran(" ".join(command), ended[0].code, all_of_them)


# ---------------------------------------------------------------------- mpiexec and horovodrun, watched
def _watch(command: list[str], rank_variable: str, kill_at: int | None, logs: Path, timeout: float) -> Ran:
    """Start a launcher, kill worker 1 on the way if asked, wait for its end, kill what is left."""
    mark = processes.new_mark()
    inherited = {name: value for name, value in processes.clean_environment().items() if not name.startswith(_TOLD)}
    environment = inherited | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    said = logs / "launcher"
    with (
        namespaces.private_network(command) as here,
        open(said, "wb") as output,
        processes.launched(here, MARK, mark, environment, output) as launcher,
    ):
        deadline, in_time = time.monotonic() + timeout, True
        while launcher.poll() is None and (in_time := time.monotonic() < deadline):
            if kill_at is not None and _said(logs, _done_by_all(kill_at)):
                _kill_rank(mark, rank_variable, 1)
                kill_at = None
            time.sleep(0.01)
    code = launcher.returncode if in_time else None
    return Ran(" ".join(command), code, _workers(logs), said.read_text(errors="replace"))


def _files(logs: Path) -> list[str]:
    """mpiexec's options that keep the workers' outputs apart, in the folders that horovodrun makes."""
    return ["-outfile-pattern", f"{logs}/rank.%r.stdout", "-errfile-pattern", f"{logs}/rank.%r.stderr"]


def _split(arguments: Sequence[str | Path]) -> tuple[list[str], list[str]]:
    """mpiexec's own options, and the program."""
    place = arguments.index("python")
    return [*map(str, arguments[:place])], [*map(str, arguments[place:])]


def _said(logs: Path, text: str) -> bool:
    files = [logs / "launcher", *logs.glob("rank.*stdout")]
    return any(text in file.read_text(errors="replace") for file in files)


def _kill_rank(mark: str, variable: str, rank: int) -> None:
    for process in processes.marked(MARK, mark):
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == str(rank):
                process.kill()


def _workers(logs: Path) -> tuple[Worker, ...]:
    """What the launcher's own logs hold: ``rank.0.stdout`` (mpiexec) or ``rank.0/stdout`` (horovodrun)."""
    streams: dict[int, dict[str, str]] = {}
    for file in [*logs.glob("rank.*.std*"), *logs.glob("rank.*/std*")]:
        name = file.name if file.parent == logs else f"{file.parent.name}.{file.name}"
        _, rank, stream = name.split(".")
        text = file.read_text(errors="replace").replace(f"[{int(rank)}]<{stream}>:", "")
        streams.setdefault(int(rank), {})[stream] = text
    return tuple(
        Worker(f"worker {rank}", texts.get("stdout", ""), texts.get("stderr", ""))
        for rank, texts in sorted(streams.items())
    )
