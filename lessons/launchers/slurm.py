"""A Slurm cluster of a few virtual nodes on this machine: the real programs, for a notebook or a test.

    with slurm.cluster() as cluster:
        print(cluster.command("sinfo"))
        job = cluster.submit("scripts/train.sbatch", "--folder", folder)
        print(cluster.wait(job))

Munge (who is who), slurmctld (the controller, with the queue) and a slurmd for each node run as on a real cluster. Only
that all nodes are this machine: they share its processors, its disk and its address 127.0.0.1, and their names (node1,
node2) do not resolve. It needs Linux and the packages slurm-wlm and munge; root is not needed. Several clusters can run
side by side. A supervisor (``python -m lessons.launchers.slurm FOLDER``) starts the daemons, and ends them and all that
jobs have started when the ``with`` block ends, and also when the process that began it dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from lessons.launchers import processes
from utils.ranks.failures import how_it_ended
from utils.ranks.lifetimes import adopt_orphans
from utils.ranks.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
_UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED")
_STARTS = 3  # a free port may be taken by somebody else before Slurm gets it
_START = 110.0  # seconds for a daemon
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # of daemons; not in everybody's PATH

_CONFIGURATION = Path(__file__).with_suffix(".conf").read_text()
# (Two processors, whatever this machine has: Slurm counts them, and reserves nothing here.)
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000"


class SlurmError(RuntimeError):
    """Slurm does not start, refuses a command, or a job is not done in time: one sentence, then the last lines."""


@dataclass(frozen=True)
class Job:
    """What came of a job.

    Args:
        number: the job's number.
        state: Slurm's word: "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", …
        exit_code: of the batch script; None if it did not end by itself.
        nodes: names of the nodes it ran on; the first one ran the batch script.
        output: what the script and its steps printed, stdout and stderr.
    """

    number: int
    state: str
    exit_code: int | None
    nodes: tuple[str, ...]
    output: str


class Cluster:
    """A running cluster; made by ``cluster()``.

    Attributes:
        nodes: their names. Each has two processors.
        folder: where configuration, logs and outputs are; it goes when the cluster stops.
        environment: what a program needs to speak with this cluster; with it any command of Slurm works.
    """

    nodes = ("node1", "node2")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = processes.clean_environment() | {"SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *words: str, **variables: str) -> str:
        """What a command prints: ``command("sinfo", "--Node")``, ``squeue``, ``scancel``, ``scontrol``, ``srun``, ….

        It runs in the repository's folder, with these environment variables.

        Raises:
            SlurmError: it failed or took longer than 30 seconds; the text has its last lines.
        """
        options = {"cwd": ROOT, "env": self.environment | variables, "stdin": subprocess.DEVNULL, "timeout": 30.0}
        try:
            done = subprocess.run(words, capture_output=True, text=True, **options)
        except subprocess.TimeoutExpired as late:
            raise SlurmError(f"{words[0]} was not finished after {late.timeout:g} s") from None
        if done.returncode:
            raise SlurmError(f"{words[0]} failed with exit code {done.returncode}:\n{processes.tail(done.stderr)}")
        return done.stdout

    def submit(self, *words: str | Path, **variables: str) -> int:
        """``sbatch`` a script. It runs in the repository's folder, with this Python first in PATH.

        Args:
            words: options of sbatch, which win over the script's ``#SBATCH`` lines; its path, absolute or from the
                repository's folder; its arguments.
            variables: more environment variables for the job.

        Returns:
            The job's number.
        """
        said = self.command("sbatch", "--parsable", f"--output={self._output('%j')}", *map(str, words), **variables)
        return int(said.partition(";")[0])

    def wait(self, job: int, timeout: float = 110.0) -> Job:
        """Wait until a job has ended.

        Raises:
            SlurmError: it has not ended in time; it is cancelled, and the text has the last that it printed.
        """
        deadline = time.monotonic() + timeout
        while True:
            shown = self.command("scontrol", "--oneliner", "show", "job", str(job))
            said = dict(re.findall(r"(\w+)=(\S*)", shown))
            if said["JobState"] not in _UNFINISHED:
                break
            if time.monotonic() > deadline:
                self.command("scancel", str(job))
                why = f"{said['JobState']}, reason {said.get('Reason')}"
                late = f"job {job} had not ended after {timeout:g} s ({why}) and was cancelled."
                raise SlurmError(f"{late}\n{processes.tail(processes.read(self._output(job)))}")
            time.sleep(0.1)
        code, _, by_signal = said["ExitCode"].partition(":")
        nodes = ()
        if said["NodeList"] not in ("", "(null)"):  # cancelled before it ran
            nodes = tuple(self.command("scontrol", "show", "hostnames", said["NodeList"]).split())
        by_itself = by_signal == "0" and said["JobState"] in ("COMPLETED", "FAILED")
        exit_code = int(code) if by_itself else None  # (for TIMEOUT Slurm says 0)
        return Job(job, said["JobState"], exit_code, nodes, processes.read(self._output(job)))

    def _output(self, job: int | str) -> Path:
        return self.folder / f"job-{job}.out"


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster. All its nodes are idle when the block begins; all of it is gone when the block ends.

    Raises:
        SlurmError: it cannot run here (the sentence of ``why_not()``), or it did not start.
    """
    if reason := why_not():
        raise SlurmError(reason)
    for start in range(_STARTS):
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        _configure(folder)
        supervisor = [sys.executable, "-m", "lessons.launchers.slurm", str(folder)]
        with processes.helper(supervisor, processes.clean_environment()) as running:  # (it removes the folder)
            assert running.stdout is not None
            problem = json.loads(running.stdout.readline() or '"its supervisor ended"')
            if problem is None:
                yield Cluster(folder)
                return
        if "Address already in use" not in problem or start == _STARTS - 1:
            raise SlurmError(f"Slurm did not start: {problem}")


def why_not() -> str | None:
    """One sentence why a cluster cannot run here; None if it can."""
    if sys.platform != "linux":
        return "Slurm runs on Linux only"
    for program in ("munged", "slurmctld", "slurmd", "sbatch"):
        if _program(program) is None:
            return f"Slurm is not installed here (no {program}): apt-get install slurm-wlm munge"
    if _user() is None:
        return f"Slurm needs a name for the user who runs it, and number {os.geteuid()} has none in /etc/passwd"
    return None


# ---------------------------------------------------------------------- a new cluster's folder
def _program(name: str) -> str | None:
    """Where a program of Slurm is."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS)))


def _user() -> str | None:
    """The name of the user who runs this: all daemons run under it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def _configure(folder: Path) -> None:
    """Put what its daemons need into an empty folder, where all they do stays: configuration, key, free ports."""
    folder.chmod(0o711)  # munge insists that others could reach its socket
    ports = free_ports(len(Cluster.nodes) + 1)
    nodes = [_NODE.format(name=name, port=port) for name, port in zip(Cluster.nodes, ports[1:], strict=True)]
    text = _CONFIGURATION.format(ports=ports, user=_user(), folder=folder, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(text)
    if _version() >= (24, 5):  # the first that knows this; older ones take cgroups only where they are asked to
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (folder / "state").mkdir()
    with open(os.open(folder / "munge.key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
        key.write(os.urandom(1024))


def _version() -> tuple[int, int]:
    """Year and month of this Slurm."""
    said = subprocess.run([_program("slurmd") or "slurmd", "-V"], capture_output=True, text=True).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# ---------------------------------------------------------------------- the supervisor, a process of its own
def _supervise(folder: Path) -> None:
    """Start the daemons, say so (JSON: null, or what went wrong), wait for the end of standard input, end them all."""
    adopt_orphans()  # each step of a job is a daemon too
    try:
        print(json.dumps(_start_daemons(folder)), flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            _reap(os.WNOHANG)
    finally:
        processes.kill_all(lambda: psutil.Process().children(recursive=True))
        _reap(0)
        shutil.rmtree(folder, ignore_errors=True)


def _start_daemons(folder: Path) -> str | None:
    """Start them all and wait until all nodes are idle. Returns what went wrong."""
    munge = [f"--{what}-file={folder}/munge.{end}" for what, end in (("key", "key"), ("pid", "pid"), ("log", "log"))]
    munge += [f"--seed-file={folder}/munge.seed", f"--socket={folder}/munge.socket", "--force"]
    started = {"munged": _daemon(folder, "munged", "munged", "--foreground", *munge)}
    if problem := _wait(folder, started, (folder / "munge.socket").exists):
        return problem
    configuration = str(folder / "slurm.conf")
    started["slurmctld"] = _daemon(folder, "slurmctld", "slurmctld", "-D", "-c", "-f", configuration)
    for name in Cluster.nodes:
        started[name] = _daemon(folder, name, "slurmd", "-D", "-N", name, "-f", configuration)

    def all_idle() -> bool:
        ask, environment = ["sinfo", "--noheader", "--Node", "--format=%T"], os.environ | {"SLURM_CONF": configuration}
        return subprocess.run(ask, env=environment, capture_output=True).stdout.split() == [b"idle"] * len(
            Cluster.nodes
        )

    return _wait(folder, started, all_idle)


def _daemon(folder: Path, name: str, kind: str, *args: str) -> subprocess.Popen[bytes]:
    with open(folder / f"{name}.out", "wb") as out:
        command = [_program(kind) or kind, *args]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder)


def _wait(folder: Path, started: Mapping[str, subprocess.Popen[bytes]], ready: Callable[[], bool]) -> str | None:
    """Until they are ready. Returns what went wrong."""
    deadline = time.monotonic() + _START
    while not ready():
        for name, daemon in started.items():
            if daemon.poll() is not None:
                last = processes.tail(processes.read(folder / f"{name}.out"))
                return f"{name} {how_it_ended(daemon.returncode, in_sentence=True)}\n{last}"
        if time.monotonic() > deadline:
            return "not all nodes were ready in time"
        time.sleep(0.05)
    return None


def _reap(how: int) -> None:
    """Take notice of children that have ended, so that they do not stay in the list of processes.

    Args:
        how: os.WNOHANG, or 0: wait until there is no child left.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass


if __name__ == "__main__":
    _supervise(Path(sys.argv[1]))
