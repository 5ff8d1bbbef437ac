"""A Slurm cluster of a few virtual nodes on this machine: the real programs, for a notebook or a test.

    with slurm.cluster() as cluster:
        print(cluster.command("sinfo"))
        job = cluster.submit("scripts/train.sbatch", "--folder", folder)
        print(cluster.wait(job))

What runs is what runs on a real cluster: munge (who is who), slurmctld (the controller, with the queue), and one slurmd
for each node. Only that all nodes are this machine: they share its processors, its disk and its address 127.0.0.1, and
their names (node1, node2) do not resolve. It needs Linux and the packages slurm-wlm and munge; root is not needed.
Several clusters can run side by side: each has a key, ports and a folder of its own.

A supervisor process (``python -m lessons.launchers.slurm FOLDER SECONDS``) starts the daemons. It ends them, and all
that jobs have started, when the ``with`` block ends, and also when the process that began it dies.
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
from collections.abc import Iterator, Mapping, Sequence
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
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # of daemons; not in everybody's PATH

_CONFIGURATION = Path(__file__).with_suffix(".conf").read_text()
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000"


class SlurmError(RuntimeError):
    """Slurm does not start, refuses a command, or a job is not done in time: one sentence, then the last lines."""


@dataclass(frozen=True)
class Job:
    """What came of a job. Shows itself as its state and its output.

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

    def __repr__(self) -> str:
        how = "no exit code" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"job {self.number} on {', '.join(self.nodes)}: {self.state}, {how}\n{self.output}"


class Cluster:
    """A running cluster; made by ``cluster()``.

    Attributes:
        nodes: their names, ("node1", "node2").
        folder: where configuration, logs and outputs are; it goes when the cluster stops.
        environment: what a program needs to speak with this cluster; with it any command of Slurm works.
    """

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.folder, self.nodes = folder, tuple(nodes)
        self.environment = processes.clean_environment() | {"SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *words: str, timeout: float = 30.0) -> str:
        """What a command prints: ``command("sinfo", "--Node")``, ``squeue``, ``scancel``, ``scontrol``, ``srun``, ….

        It runs in the repository's folder.

        Raises:
            SlurmError: it failed or took too long; the text has its last lines.
        """
        return self._command(words, self.environment, timeout)

    def submit(
        self,
        script: str | Path,
        *args: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """``sbatch`` a script. It runs in the repository's folder, with this Python first in PATH.

        Args:
            script: its path, absolute or from the repository's folder.
            args: the script's arguments.
            options: of sbatch: ``("--nodes=1", "--time=1")``. They win over the script's ``#SBATCH`` lines.
            environment: more variables for the job.

        Returns:
            The job's number.
        """
        script = ROOT / script
        if not script.is_file():
            raise FileNotFoundError(f"there is no script {script.name} in {script.parent}")
        words = ("sbatch", "--parsable", f"--output={self._output('%j')}", *options, str(script), *args)
        return int(self._command(words, {**self.environment, **(environment or {})}, 30.0).partition(";")[0])

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

    def _command(self, words: Sequence[str], environment: Mapping[str, str], timeout: float) -> str:
        try:
            done = subprocess.run(
                words,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{words[0]} was not finished after {timeout:g} s") from None
        except FileNotFoundError:
            raise SlurmError(f"there is no program {words[0]}") from None
        if done.returncode:
            raise SlurmError(f"{words[0]} failed with exit code {done.returncode}:\n{processes.tail(done.stderr)}")
        return done.stdout


@contextlib.contextmanager
def cluster(nodes: int = 2, cpus: int = 2, timeout: float = 110.0) -> Iterator[Cluster]:
    """Start a cluster. All its nodes are idle when the block begins; all of it is gone when the block ends.

    Args:
        nodes: how many virtual nodes: node1, node2, …
        cpus: processors of each, whatever this machine has: Slurm counts them, and reserves nothing here.
        timeout: seconds for the start.

    Raises:
        SlurmError: it cannot run here (the sentence of ``why_not()``), or it did not start.
    """
    if nodes < 1 or cpus < 1:
        raise ValueError(f"a cluster has at least one node and one processor, not {nodes} and {cpus}")
    if reason := why_not():
        raise SlurmError(reason)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    for start in range(_STARTS):
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        _configure(folder, names, cpus)
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "lessons.launchers.slurm", str(folder), str(timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=processes.clean_environment(),
            start_new_session=True,
        )
        assert supervisor.stdout is not None
        try:
            problem = json.loads(supervisor.stdout.readline() or '"its supervisor ended"')
            if problem is None:
                yield Cluster(folder, names)
                return
        finally:
            supervisor.communicate()  # closes its standard input: it ends all, and removes the folder
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


def _configure(folder: Path, names: Sequence[str], cpus: int) -> None:
    """Put all that a new cluster needs into an empty folder: configuration, key, free ports.

    Args:
        folder: where; its daemons will keep everything there.
        names: of its nodes.
        cpus: processors that each node claims to have.
    """
    folder.chmod(0o711)  # munge insists that others could reach its socket
    ports = free_ports(len(names) + 1)
    nodes = [_NODE.format(name=name, port=port, cpus=cpus) for name, port in zip(names, ports[1:], strict=True)]
    text = _CONFIGURATION.format(ports=ports, user=_user(), folder=folder, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(text)
    if _version() >= (24, 5):  # the first that knows this; older ones take cgroups only where they are asked to
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (folder / "nodes.json").write_text(json.dumps(list(names)))
    (folder / "state").mkdir()
    with open(os.open(folder / "munge.key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
        key.write(os.urandom(1024))


def _version() -> tuple[int, int]:
    """Year and month of this Slurm."""
    said = subprocess.run([_program("slurmd") or "slurmd", "-V"], capture_output=True, text=True).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# ---------------------------------------------------------------------- the supervisor, a process of its own
def _supervise(folder: Path, timeout: float) -> None:
    """Start the daemons, say so (JSON: null, or what went wrong), wait for the end of standard input, end them all."""
    adopt_orphans()  # each step of a job is a daemon too
    try:
        problem = _start_daemons(folder, time.monotonic() + timeout)
        print(json.dumps(problem), flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            _reap()
    finally:
        processes.kill_all(lambda: psutil.Process().children(recursive=True))
        _reap(all_of_them=True)
        shutil.rmtree(folder, ignore_errors=True)


def _start_daemons(folder: Path, deadline: float) -> str | None:
    """Start them all and wait until all nodes are idle. Returns what went wrong."""
    names, configuration = json.loads(processes.read(folder / "nodes.json")), str(folder / "slurm.conf")
    started = {}
    munge = [f"--{what}-file={folder}/munge.{end}" for what, end in (("key", "key"), ("pid", "pid"), ("log", "log"))]
    munge += [f"--seed-file={folder}/munge.seed", f"--socket={folder}/munge.socket", "--force"]
    started["munged"] = _daemon(folder, "munged", "munged", "--foreground", *munge)
    while not (folder / "munge.socket").exists():
        if problem := _problem(folder, started, deadline):
            return problem
    started["slurmctld"] = _daemon(folder, "slurmctld", "slurmctld", "-D", "-c", "-f", configuration)
    for name in names:
        started[name] = _daemon(folder, name, "slurmd", "-D", "-N", name, "-f", configuration)
    environment = os.environ | {"SLURM_CONF": configuration}
    while True:
        states = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], env=environment, capture_output=True)
        if states.stdout.split() == [b"idle"] * len(names):
            return None
        if problem := _problem(folder, started, deadline):
            return problem


def _daemon(folder: Path, name: str, kind: str, *args: str) -> subprocess.Popen[bytes]:
    with open(folder / f"{name}.out", "wb") as out:
        return subprocess.Popen(
            [_program(kind) or kind, *args], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder
        )


def _problem(folder: Path, started: Mapping[str, subprocess.Popen[bytes]], deadline: float) -> str | None:
    time.sleep(0.05)
    for name, daemon in started.items():
        if daemon.poll() is not None:
            last = processes.tail(processes.read(folder / f"{name}.out"))
            return f"{name} {how_it_ended(daemon.returncode, in_sentence=True)}\n{last}"
    return "not all nodes were ready in time" if time.monotonic() > deadline else None


def _reap(all_of_them: bool = False) -> None:
    """Take notice of children that have ended, so that they do not stay in the list of processes.

    Args:
        all_of_them: wait until there is no child left.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0 if all_of_them else os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    _supervise(Path(sys.argv[1]), float(sys.argv[2]))
