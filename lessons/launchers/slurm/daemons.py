"""The daemons of the Slurm cluster: their configuration, and the supervisor process that starts and ends them.

``python -m lessons.launchers.slurm.daemons FOLDER SECONDS`` starts the cluster that ``configure`` has described.
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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from lessons.launchers import processes
from utils.ranks.failures import how_it_ended
from utils.ranks.lifetimes import adopt_orphans
from utils.ranks.ports import free_ports

_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # of daemons; not in everybody's PATH
_LAST_LINES = 12

_CONFIGURATION = """
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# Follow processes by their parents, bind them nowhere, believe the numbers of processors below:
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
# Processors are what jobs get, one by one; a queue is looked through at once, and what can never run is refused:
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
EnforcePartLimits=ALL
ReturnToService=2
KillWait=2
MailProg=/bin/true
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=60
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000"


def program(name: str) -> str | None:
    """Where a program of Slurm is."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS)))


def user() -> str | None:
    """The name of the user who runs this: all daemons run under it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def configure(folder: Path, names: Sequence[str], cpus: int) -> None:
    """Put all that a new cluster needs into an empty folder: configuration, key, free ports.

    Args:
        folder: where; its daemons will keep everything there.
        names: of its nodes.
        cpus: processors that each node claims to have.
    """
    folder.chmod(0o711)  # munge insists that others could reach its socket
    ports = free_ports(len(names) + 1)
    nodes = [_NODE.format(name=name, port=port, cpus=cpus) for name, port in zip(names, ports[1:], strict=True)]
    text = _CONFIGURATION.format(ports=ports, user=user(), folder=folder, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(text)
    if _version() >= (24, 5):  # the first that knows this; older ones take cgroups only where they are asked to
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (folder / "nodes.json").write_text(json.dumps(list(names)))
    (folder / "state").mkdir()
    with open(os.open(folder / "munge.key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
        key.write(os.urandom(1024))


def _version() -> tuple[int, int]:
    """Year and month of this Slurm."""
    said = subprocess.run([program("slurmd") or "slurmd", "-V"], capture_output=True, text=True).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def read(file: Path) -> str:
    """Its text; nothing if it is not there."""
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def tail(file: Path) -> str:
    """Its last lines."""
    return "\n".join(read(file).strip().splitlines()[-_LAST_LINES:])


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
    names, configuration = json.loads(read(folder / "nodes.json")), str(folder / "slurm.conf")
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
            [program(kind) or kind, *args], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder
        )


def _problem(folder: Path, started: Mapping[str, subprocess.Popen[bytes]], deadline: float) -> str | None:
    time.sleep(0.05)
    for name, daemon in started.items():
        if daemon.poll() is not None:
            return f"{name} {how_it_ended(daemon.returncode, in_sentence=True)}\n{tail(folder / f'{name}.out')}"
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
