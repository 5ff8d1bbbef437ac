"""mpiexec and horovodrun: started, watched, and ended with all that they have started; with a warm torch, too."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from lessons.launchers import namespaces, processes
from lessons.launchers.frameworks import warm_process
from lessons.launchers.frameworks.results import RunResult, Worker

MARK = "COURSE_FRAMEWORKS"  # this environment variable holds the pid of whoever started it all, and a random part
_TOLD = ("PMI_", "MPI_", "MPIR_", "HYDRA_", "HOROVOD_", "TF_CONFIG")
_TORCH = ("torch", "torch._dynamo", "torch.distributed", "utils.training.same_training")  # (optimizers take _dynamo)
_warm: tuple[Path, list[namespaces.Host]] | None = None


@contextlib.contextmanager
def warm_torch() -> Iterator[None]:
    """torch is imported once for all runs in this block; they share one network of their own, where there can be one.

    The launchers start processes as ever; ``python`` is then a copy of the one that has imported torch.
    """
    global _warm
    with contextlib.ExitStack() as stack:
        hosts = [] if namespaces.why_not() else stack.enter_context(namespaces.hosts(1))
        environment = processes.clean_environment() | {"OMP_NUM_THREADS": "1"}
        there = hosts[0].inside([]) if hosts else []
        _warm = stack.enter_context(warm_process.python(_TORCH, environment, there)), hosts
        try:
            yield
        finally:
            _warm = None


def for_torchrun() -> dict[str, Any]:
    """Options of ``torchrun.agents`` that let its workers be warm, too."""
    return {"hosts": _warm[1] or None, "env": {"PYTHON_EXEC": str(_warm[0])}} if _warm else {}


def watch(command: list[str], rank_variable: str, kill_at: int | None, logs: Path, timeout: float) -> RunResult:
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
            if kill_at is not None and _said(logs, done_by_all(kill_at)):
                _kill_rank(mark, rank_variable, 1)
                kill_at = None
            time.sleep(0.01)
    code = launcher.returncode if in_time else None
    return RunResult(" ".join(command), code, _workers(logs), said.read_text(errors="replace"))


def _network(command: list[str]) -> contextlib.AbstractContextManager[list[str]]:
    if not _warm:
        return namespaces.private_network(command)
    return contextlib.nullcontext(_warm[1][0].inside(command) if _warm[1] else command)


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
