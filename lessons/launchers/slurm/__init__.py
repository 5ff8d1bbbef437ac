"""A Slurm cluster of a few virtual nodes on this machine: the real programs, for a notebook or a test.

    with slurm.cluster() as cluster:
        print(cluster.command("sinfo"))
        job = cluster.submit("scripts/train.sbatch", "--folder", folder)
        print(cluster.wait(job))

What runs is what runs on a real cluster: munge (who is who), slurmctld (the controller, with the queue), and one slurmd
for each node. Only that all nodes are this machine: they share its processors, its disk and its address 127.0.0.1, and
their names (node1, node2) do not resolve. It needs Linux and the packages slurm-wlm and munge; root is not needed.
Several clusters can run side by side: each has a key, ports and a folder of its own.

A supervisor process (``daemons.py``) starts the daemons. It ends them, and all that jobs have started, when
the ``with`` block ends, and also when the process that began it dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lessons.launchers import processes
from lessons.launchers.slurm import daemons
from lessons.launchers.slurm.daemons import read, tail

ROOT = Path(__file__).resolve().parents[3]
_UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED")
_STARTS = 3  # a free port may be taken by somebody else before Slurm gets it
_LAST_LINES = 12


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
                raise SlurmError(
                    f"job {job} had not ended after {timeout:g} s ({why}) and was cancelled.\n{tail(self._output(job))}"
                )
            time.sleep(0.1)
        code, _, by_signal = said["ExitCode"].partition(":")
        nodes = ()
        if said["NodeList"] not in ("", "(null)"):  # cancelled before it ran
            nodes = tuple(self.command("scontrol", "show", "hostnames", said["NodeList"]).split())
        by_itself = by_signal == "0" and said["JobState"] in ("COMPLETED", "FAILED")
        exit_code = int(code) if by_itself else None  # (for TIMEOUT Slurm says 0)
        return Job(job, said["JobState"], exit_code, nodes, read(self._output(job)))

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
            last = "\n".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise SlurmError(f"{words[0]} failed with exit code {done.returncode}:\n{last}")
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
        daemons.configure(folder, names, cpus)
        supervisor = subprocess.Popen(
            # (This package imports the module that is run here, of which Python warns.)
            [sys.executable, "-W", "ignore::RuntimeWarning", "-m", daemons.__name__, str(folder), str(timeout)],
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
        if daemons.program(program) is None:
            return f"Slurm is not installed here (no {program}): apt-get install slurm-wlm munge"
    if daemons.user() is None:
        return f"Slurm needs a name for the user who runs it, and number {os.geteuid()} has none in /etc/passwd"
    return None
