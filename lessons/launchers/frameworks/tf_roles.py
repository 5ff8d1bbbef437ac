"""The processes of a TensorFlow cluster on this machine: each role started with its TF_CONFIG, watched and ended.

TensorFlow has no launcher of its own. Whoever starts the processes tells each of them, in the environment variable
``TF_CONFIG``, the addresses of all and its own place: ``{"cluster": {"worker": [...]}, "task": {"type": "worker",
"index": 0}}``. ``run("scripts/frameworks/with_multi_worker.py", folder, workers=2)`` does that with free ports of the
loopback, all processes at once, and returns how each ended and what it printed. No process is left afterwards.
Importing TensorFlow takes longer than these programs do, so the processes of a run, and of all runs within ``warm()``,
are copies of one that has imported it (``warm_process``).

TensorFlow's servers listen on all network cards and do what anybody asks of them. So the processes get a network of
their own, where the system allows it (``namespaces``): nobody else can reach them, and they reach nobody else.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lessons.launchers import namespaces, processes
from lessons.launchers.frameworks import warm_process
from lessons.launchers.frameworks.results import Worker
from utils.ranks.ports import free_ports

TIMEOUT = 90.0
#: Seconds that the others get to end by themselves when one has failed; many wait for the dead one.
GRACE = 15.0
_IMPORTED = "tensorflow"
_warm: Path | None = None
Task = tuple[str, int]  # role and number within it
_NOISE = ("WARNING: All log messages before absl::InitializeLog", "I0000 ", "W0000 ", "E0000 ")


@dataclass(frozen=True)
class Kill:
    """SIGKILL for a process, as soon as one of them has printed this text."""

    role: str
    index: int
    after: str


def environment(folder: str | Path) -> dict[str, str]:
    """An environment in which TensorFlow is quiet, uses the CPU, and takes few threads.

    Args:
        folder: where Keras keeps its settings.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", "KERAS_HOME": str(folder)}
    cpu = {"CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}
    few = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    here = {name: value for name, value in processes.clean_environment().items() if name != "TF_CONFIG"}
    return here | quiet | cpu | few | {"no_proxy": "127.0.0.1"}


def run(
    script: str | Path,
    *args: object,
    workers: int = 2,
    chief: bool = False,
    ps: int = 0,
    evaluator: bool = False,
    timeout: float = TIMEOUT,
    grace: float = GRACE,
    kill: Kill | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Worker]:
    """Start a program once for each role, wait for those that end by themselves, end the others.

    Args:
        script: the program; it reads its role from ``TF_CONFIG``.
        args: its arguments.
        workers, chief, ps, evaluator: how many of each role. Where there is a chief, workers and ps are servers that
            wait for ever, so all is over when the chief (and the evaluator) have ended. ``workers=0`` and no other
            role: one process without ``TF_CONFIG``.
        timeout: seconds for everything.
        grace: seconds that the others get when one has failed.
        kill: a process to kill on the way.
        env: more environment variables.

    Returns:
        One for each process: chief, workers, ps, evaluator.
    """
    counts = {"chief": int(chief), "worker": workers, "ps": ps}
    command = [str(Path(script).resolve()), *map(str, args)]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tf-roles-"))
        wanted = [_IMPORTED] if _IMPORTED in Path(command[0]).read_text(encoding="utf-8") else []
        python = _warm or stack.enter_context(_python(wanted))
        started = _Started(Path(folder), [str(python), *command], counts, evaluator, env or {})
        try:
            started.wait(timeout, grace, kill)
        finally:
            started.end()
        return started.ended()


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """TensorFlow is imported once for all runs in this block; they share one network of their own."""
    global _warm
    with _python([_IMPORTED]) as _warm:
        try:
            yield
        finally:
            _warm = None


@contextlib.contextmanager
def _python(modules: Sequence[str]) -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix="tf-warm-") as folder,
        namespaces.private_network([]) as there,
        warm_process.python(modules, environment(folder), there) as python,
    ):
        yield python


class _Started:
    """The processes of one run."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        counts: Mapping[str, int],
        evaluator: bool,
        env: Mapping[str, str],
    ) -> None:
        ports = iter(free_ports(sum(counts.values())))
        cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items() if count}
        self.folder, self.command, self.env, self.cluster = folder, command, dict(env), cluster
        tasks = [(role, index) for role, addresses in cluster.items() for index in range(len(addresses))]
        tasks += [("evaluator", 0)] * evaluator  # it talks to nobody, so nobody has its address
        tasks = tasks or [("worker", 0)]
        self.waits_for = [task for task in tasks if "chief" not in cluster or task[0] in ("chief", "evaluator")]
        self.logs = {(role, index): folder / f"{role}-{index}.log" for role, index in tasks}
        self.codes: dict[Task, int | None] = dict.fromkeys(tasks)
        self.running: dict[Task, subprocess.Popen[bytes]] = {}
        for task in tasks:
            self.start(task)
        self.begin = time.monotonic()

    def start(self, task: Task) -> None:
        config = {"TF_CONFIG": json.dumps({"cluster": self.cluster, "task": {"type": task[0], "index": task[1]}})}
        env = environment(self.folder) | (config if self.cluster else {}) | self.env
        with open(self.logs[task], "ab") as log:
            self.running[task] = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def wait(self, timeout: float, grace: float, kill: Kill | None) -> None:
        """Until all have ended that end by themselves, or it takes too long."""
        end = self.begin + timeout
        while time.monotonic() < end and any(task in self.running for task in self.waits_for):
            if kill and any(kill.after in log.read_text(errors="replace") for log in self.logs.values()):
                victim = self.running.get((kill.role, kill.index))
                if victim and victim.poll() is None:
                    victim.kill()
                    victim.wait()
                kill = None
            for task, process in list(self.running.items()):
                if (code := process.poll()) is not None:
                    self.codes[task] = code
                    del self.running[task]
                    if code:
                        end = min(end, time.monotonic() + grace)
            time.sleep(0.01)

    def end(self) -> None:
        """SIGKILL for all that is left."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()

    def ended(self) -> list[Worker]:
        found = []
        for task, log in self.logs.items():
            lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(_NOISE)]
            found.append(Worker(*task, "\n".join(lines), code=self.codes[task]))
        return found
