"""mpiexec and horovodrun: started, watched, and ended with all that they have started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from utils.launchers import namespaces, processes
from utils.launchers.frameworks.results import RunResult, Worker

MARK = "COURSE_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
_TOLD = ("PMI_", "MPI_", "MPIR_", "HYDRA_", "HOROVOD_", "TF_CONFIG")


def watch(command: list[str], rank_variable: str, kill_at: int | None, logs: Path, timeout: float) -> RunResult:
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
            if kill_at is not None and _said(logs, done_by_all(kill_at)):
                _kill_rank(mark, rank_variable, 1)
                kill_at = None
            time.sleep(0.01)
    code = launcher.returncode if in_time else None
    return RunResult(" ".join(command), code, _workers(logs), said.read_text(errors="replace"))


def output_files(logs: Path) -> list[str]:
    """mpiexec's options that keep the workers' outputs apart, in the folders that horovodrun makes."""
    return ["-outfile-pattern", f"{logs}/rank.%r.stdout", "-errfile-pattern", f"{logs}/rank.%r.stderr"]


def split_options(arguments: Sequence[str | Path]) -> tuple[list[str], list[str]]:
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


def done_by_all(step: int) -> str:
    """What a synchronous worker prints only after every other one has done a step."""
    return f"step {step + 1}"
