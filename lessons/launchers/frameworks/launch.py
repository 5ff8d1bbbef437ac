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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from lessons.launchers import namespaces, processes, torchrun
from lessons.launchers.frameworks import tf_roles, warm_process
from lessons.launchers.frameworks.results import RunResult, Worker

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "frameworks"
TIMEOUT = 90.0
#: Seconds between two steps of a run in which a worker is killed: time to kill it before the training is over.
PAUSE = 0.1
#: Seconds that TensorFlow's other processes get when one has failed: a chief goes on without a worker.
GRACE = 30.0
MARK = "COURSE_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
_TOLD = ("PMI_", "MPI_", "MPIR_", "HYDRA_", "HOROVOD_", "TF_CONFIG")
_TORCH = ("torch", "torch._dynamo", "torch.distributed", "utils.training.same_training")  # (optimizers take _dynamo)
_warm: tuple[Path, list[namespaces.Host]] | None = None


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
    """torch and TensorFlow are imported once for all runs in this block, which are then copies of those that did.

    The launchers start processes as ever; ``python`` is then a copy of the one that has imported torch. All of these
    share one network of their own, where there can be one.
    """
    global _warm
    with contextlib.ExitStack() as stack:
        hosts = [] if namespaces.why_not() else stack.enter_context(namespaces.hosts(1))
        environment = processes.clean_environment() | {"OMP_NUM_THREADS": "1"}
        there = hosts[0].inside([]) if hosts else []
        _warm = stack.enter_context(warm_process.python(_TORCH, environment, there)), hosts
        stack.enter_context(tf_roles.warm())
        try:
            yield
        finally:
            _warm = None


def mpiexec(*arguments: str | Path, timeout: float = TIMEOUT) -> str:
    """What ``mpiexec …`` prints, in the order of ranks (mpiexec itself mixes the lines of all)."""
    with tempfile.TemporaryDirectory(prefix="mpiexec-") as folder:
        before, rest = _split_options(arguments)
        ran = _watch(["mpiexec", *before, *_output_files(Path(folder)), *rest], "PMI_RANK", None, Path(folder), timeout)
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


# ---------------------------------------------------------------------- the launchers
def _torchrun(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> RunResult:
    with torchrun.agents(path, *args, nodes=1, per_node=workers, **_for_torchrun()) as agents:
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
    ended = tuple(Worker("worker", worker.rank, worker.output, worker.errors) for worker in agent.workers)
    return RunResult(" ".join(command), agent.exit_code, ended, agent.log)


def _launched(
    launcher: str, program: Sequence[str | Path], workers: int, kill_at: int | None, logs: Path, timeout: float
) -> RunResult:
    """mpiexec and horovodrun."""
    python = ["python", *map(str, program)]
    if launcher == "mpiexec":
        typed, quiet, rank = ["mpiexec", "-n", str(workers)], ["-print-all-exitcodes", *_output_files(logs)], "PMI_RANK"
    else:
        typed, rank = ["horovodrun", "-np", str(workers), "--gloo"], "HOROVOD_RANK"
        loopback = "lo" if sys.platform == "linux" else "lo0"
        quiet = ["--disable-cache", "--network-interfaces", loopback, "--output-filename", str(logs)]
    ran = _watch([*typed, *quiet, *python], rank, kill_at, logs, timeout)
    return RunResult(" ".join([*typed, *python]), ran.code, ran.workers, ran.launcher)


def _tensorflow(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> RunResult:
    servers: dict[str, Any] = {"chief": True, "ps": 1, "evaluator": kill_at is None} if "server" in path.stem else {}
    # (the chief of a parameter server prints every tenth step, when all workers have done their parts)
    sign = "" if kill_at is None else f"step {kill_at}" if servers else _done_by_all(kill_at)
    kill = tf_roles.Kill("worker", 1, sign) if sign else None
    ended = tf_roles.run(path, *args, workers=workers, timeout=timeout, grace=GRACE, kill=kill, **servers)
    command = ["TF_CONFIG=…"] * (workers > 0) + ["python", str(path), *args]
    return RunResult(" ".join(command), ended[0].code, tuple(ended))


# ---------------------------------------------------------------------- mpiexec and horovodrun, watched
def _for_torchrun() -> dict[str, Any]:
    """Options of ``torchrun.agents`` that let its workers be warm, too."""
    return {"hosts": _warm[1] or None, "env": {"PYTHON_EXEC": str(_warm[0])}} if _warm else {}


def _watch(command: list[str], rank_variable: str, kill_at: int | None, logs: Path, timeout: float) -> RunResult:
    """Start a launcher, kill worker 1 on the way if asked, wait for its end, kill what is left."""
    mark = processes.new_mark()
    inherited = {name: value for name, value in processes.clean_environment().items() if not name.startswith(_TOLD)}
    environment = inherited | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # horovodrun may end before its multiprocessing has put its semaphores away, which then warns now and then.
    environment["PYTHONWARNINGS"] = ",".join(filter(None, (inherited.get("PYTHONWARNINGS"), "ignore:resource_tracker")))
    said = logs / "launcher"
    if _warm:
        environment["PATH"] = os.pathsep.join((str(_warm[0].parent), environment["PATH"]))
        if command[0] == "horovodrun":  # a program of Python that imports torch, too, to see what it was built for
            command = [str(_warm[0]), str(Path(sys.executable).with_name("horovodrun")), *command[1:]]
    with (
        _network(command) as here,
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
    return RunResult(" ".join(command), code, _workers(logs), said.read_text(errors="replace"))


def _network(command: list[str]) -> contextlib.AbstractContextManager[list[str]]:
    if not _warm:
        return namespaces.private_network(command)
    return contextlib.nullcontext(_warm[1][0].inside(command) if _warm[1] else command)


def _output_files(logs: Path) -> list[str]:
    """mpiexec's options that keep the workers' outputs apart, in the folders that horovodrun makes."""
    return ["-outfile-pattern", f"{logs}/rank.%r.stdout", "-errfile-pattern", f"{logs}/rank.%r.stderr"]


def _split_options(arguments: Sequence[str | Path]) -> tuple[list[str], list[str]]:
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
        Worker("worker", rank, texts.get("stdout", ""), texts.get("stderr", ""))
        for rank, texts in sorted(streams.items())
    )


def _done_by_all(step: int) -> str:
    """What a synchronous worker prints only after every other one has done a step."""
    return f"step {step + 1}"
