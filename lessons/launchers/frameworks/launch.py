"""The programs of scripts/frameworks/, each started with its framework's own launcher, watched and ended.

``run("with_horovod.py", workers=2)`` starts ``horovodrun -np 2 …`` and returns what came of it: the losses and weights
that the program has written, how the launcher ended, what each worker printed, which files were left. ``kill_at=10``
kills one worker after its tenth step, which shows what happens then. No process is left.

TensorFlow's processes have no launcher, ``tf_roles`` starts them. All get a network of their own where the system
allows it, for mpiexec and horovodrun listen on all network cards.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course import outline
from lessons.launchers import processes, warm_process
from lessons.launchers.frameworks import tf_roles
from lessons.launchers.frameworks.results import RunResult, Worker
from lessons.launchers.warm_process import MARK
from utils.ranks.ports import free_ports

SCRIPTS = outline.FILES / "scripts" / "frameworks"
TIMEOUT = 90.0
#: Seconds between two steps of a run in which a worker is killed: time to kill it before the training is over.
PAUSE = 0.1
#: Seconds that TensorFlow's other processes get when one has failed: a chief goes on without a worker.
GRACE = 30.0
_LAUNCHERS = {  # for programs with such names
    **dict.fromkeys(("ddp", "accelerate", "deepspeed"), "torchrun"),
    **dict.fromkeys(("mpi", "jax"), "mpiexec"),
    "horovod": "horovodrun",
}
_TOLD = ("PMI_", "MPI_", "MPIR_", "HYDRA_", "HOROVOD_", "TF_CONFIG")


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
        elif named := [launcher for word, launcher in _LAUNCHERS.items() if word in path.stem]:
            ran = _launched(named[0], [path, *args], workers, kill_at, logs, timeout)
        elif "mirrored" in path.stem:
            ran = _tensorflow(path, [*args[:1], str(workers)], 0, None, timeout)
        else:
            ran = _tensorflow(path, args, workers, kill_at, timeout)
        files = {str(file.relative_to(kept)): file.stat().st_size for file in sorted(kept.rglob("*")) if file.is_file()}
        results = [name for name in files if name.endswith(".json")]
        found = json.loads(Path(kept, results[0]).read_text()) if results else {}
        command = ran.command.replace(str(kept), "FOLDER").replace(f"{path.parent}{os.sep}", "")
        command = command.replace(f"{SCRIPTS}{os.sep}", "").replace(str(PAUSE), "PAUSE")
        return RunResult(command, ran.code, ran.workers, ran.launcher, found, files)


def mpiexec(*arguments: str | Path) -> str:
    """What ``mpiexec …`` prints, in the order of ranks (mpiexec itself mixes the lines of all)."""
    with tempfile.TemporaryDirectory(prefix="mpiexec-") as folder:
        command = ["mpiexec", *_output_files(Path(folder)), *map(str, arguments)]
        ran = _watch(command, "PMI_RANK", None, Path(folder), TIMEOUT)
        lines = [line for worker in ran.workers for line in worker.output.splitlines()]
        return "\n".join(lines) if ran.code == 0 else f"exit code {ran.code}\n{ran.launcher}"


def horovodrun(*arguments: str | Path) -> str:
    """What ``horovodrun …`` itself prints, and its workers."""
    with tempfile.TemporaryDirectory(prefix="horovodrun-") as folder:
        command = ["horovodrun", "--gloo", "--disable-cache", *map(str, arguments)]
        return _watch(command, "HOROVOD_RANK", None, Path(folder), TIMEOUT).launcher


def edited(program: str, changes: Mapping[str, str], folder: str | Path) -> Path:
    """A copy of a program with some pieces of text replaced; a line of which nothing is left goes.

    Raises:
        ValueError: a piece is not in the program, or more than once.
    """
    source = (SCRIPTS / program).read_text(encoding="utf-8")
    for old, new in changes.items():
        if source.count(old) != 1:
            raise ValueError(f"{program} has {old!r} {source.count(old)} times, not once")
        (line,) = (line for line in source.splitlines(keepends=True) if old in line)
        changed = line.replace(old, new)
        source = source.replace(line, changed if changed.split("#")[0].strip() else "", 1)
    copy = Path(folder, program)
    copy.write_text(source, encoding="utf-8")
    return copy


# ---------------------------------------------------------------------- the launchers
def _launched(
    launcher: str, program: Sequence[str | Path], workers: int, kill_at: int | None, logs: Path, timeout: float
) -> RunResult:
    """mpiexec, horovodrun and torchrun."""
    python, loopback = ["python", *map(str, program)], "lo" if sys.platform == "linux" else "lo0"
    if launcher == "mpiexec":
        typed, quiet, rank = ["mpiexec", "-n", str(workers)], ["-print-all-exitcodes", *_output_files(logs)], "PMI_RANK"
    elif launcher == "horovodrun":
        typed, rank = ["horovodrun", "-np", str(workers), "--gloo"], "HOROVOD_RANK"
        quiet = ["--disable-cache", "--network-interfaces", loopback, "--output-filename", str(logs)]
    else:
        typed, rank, python = ["torchrun", f"--nproc-per-node={workers}"], "RANK", python[1:]
        quiet = [f"--master-port={free_ports(1)[0]}", "--redirects=3", f"--log-dir={logs}"]
    ran = _watch([*typed, *quiet, *python], rank, kill_at, logs, timeout)
    return RunResult(" ".join([*typed, *python]), ran.code, ran.workers, ran.launcher)


def _tensorflow(path: Path, args: list[str], workers: int, kill_at: int | None, timeout: float) -> RunResult:
    servers: dict[str, Any] = {"chief": True, "ps": 1, "evaluator": kill_at is None} if "server" in path.stem else {}
    # (the chief of a parameter server prints every tenth step, when all workers have done their parts)
    sign = "" if kill_at is None else f"step {kill_at}" if servers else _done_by_all(kill_at)
    kill = ("worker", 1, sign) if sign else None
    ended = tf_roles.run(path, *args, workers=workers, timeout=timeout, grace=GRACE, kill=kill, **servers)
    command = ["TF_CONFIG=…"] * (workers > 0) + ["python", str(path), *args]
    return RunResult(" ".join(command), ended[0].code, tuple(ended))


# ---------------------------------------------------------------------- mpiexec and horovodrun, watched
def _watch(command: list[str], rank_variable: str, kill_at: int | None, logs: Path, timeout: float) -> RunResult:
    """Start a launcher, kill worker 1 on the way if asked, wait for its end, kill what is left."""
    mark, said = processes.new_mark(), logs / "launcher"
    inherited = {name: value for name, value in processes.clean_environment().items() if not name.startswith(_TOLD)}
    environment = inherited | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # horovodrun may end before its multiprocessing has put its semaphores away, which then warns now and then.
    environment["PYTHONWARNINGS"] = ",".join(filter(None, (inherited.get("PYTHONWARNINGS"), "ignore:resource_tracker")))
    with warm_process.one("torch") as warm, open(said, "wb") as output:
        environment["PATH"] = os.pathsep.join((str(warm.python.parent), environment["PATH"]))
        environment["PYTHON_EXEC"] = str(warm.python)  # of torchrun's workers
        if command[0] != "mpiexec":  # a program of Python that imports torch, too
            command = [str(warm.python), str(Path(sys.executable).with_name(command[0])), *command[1:]]

        def accident() -> bool:
            nonlocal kill_at
            if kill_at is not None and any(
                _done_by_all(kill_at) in processes.read(file) for file in (said, *_outputs(logs))
            ):
                processes.kill_all(lambda: processes.marked(MARK, mark, **{rank_variable: "1"}))
                kill_at = None
            return False

        with processes.launched(warm.inside(command), MARK, mark, environment, output) as launcher:
            processes.watch({launcher: launcher}, [launcher], timeout, stop=accident)
            code = launcher.poll()
    return RunResult(" ".join(command), code, _workers(logs), processes.read(said))


def _output_files(logs: Path) -> list[str]:
    """mpiexec's options that keep the workers' outputs apart, in the folders that horovodrun makes."""
    return ["-outfile-pattern", f"{logs}/rank.%r.stdout", "-errfile-pattern", f"{logs}/rank.%r.stderr"]


def _outputs(logs: Path) -> dict[Path, tuple[int, str]]:
    """Which rank writes which stream to which file: ``rank.0.stdout`` (mpiexec), ``rank.0/stdout`` (horovodrun), or
    ``…/attempt_0/0/stdout.log`` (torchrun)."""
    names = {file: str(file.relative_to(logs)) for file in logs.rglob("*std*")}
    found = {file: re.search(r"(\d+)[./](stdout|stderr)(\.log)?$", name) for file, name in names.items()}
    return {file: (int(match[1]), match[2]) for file, match in found.items() if match}


def _workers(logs: Path) -> tuple[Worker, ...]:
    """What the launcher's own logs hold."""
    said: dict[int, dict[str, str]] = {}
    for file, (rank, stream) in _outputs(logs).items():
        said.setdefault(rank, {})[stream] = processes.read(file).replace(f"[{rank}]<{stream}>:", "")
    streams = ("stdout", "stderr")
    return tuple(Worker("worker", rank, *(said[rank].get(stream, "") for stream in streams)) for rank in sorted(said))


def _done_by_all(step: int) -> str:
    """What a synchronous worker prints only after every other one has done a step."""
    return f"step {step + 1}"
