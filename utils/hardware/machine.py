"""What is in this machine: processors, memory, GPUs, what connects them, networks, versions.

``look()`` never raises and never imports torch: what cannot be found out is "unknown" (or None for a number).
It respects limits: a container that may use 2 of 64 processors has 2. Works on Linux and macOS, with or
without NVIDIA GPUs.
"""

from __future__ import annotations

import html
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from utils.hardware import nvml
from utils.hardware.nvml import Gpu, describe_interconnect

T = TypeVar("T")
UNKNOWN = "unknown"
GIB = 2**30
TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Network:
    """One network interface that is up. Speed None: the driver does not tell (virtual machines)."""

    name: str
    gbit_per_s: float | None


@dataclass(frozen=True)
class Machine:
    """What ``look`` found.

    Args:
        cpu: model of the processor.
        usable_cpus: logical processors that this process may use (affinity and container limits counted).
        logical_cpus, physical_cores: of the whole machine; None: unknown.
        memory_bytes: memory that this process may use; memory_available_bytes: how much of it is free now.
        gpus: NVIDIA GPUs that the driver lists.
        visible: the environment variable CUDA_VISIBLE_DEVICES, which hides GPUs from programs; None: not set.
        interconnect: for each pair of GPUs (i < j) what lies between them, in nvidia-smi's short form.
        networks: network interfaces that are up, without loopback.
    """

    cpu: str
    usable_cpus: int | None
    logical_cpus: int | None
    physical_cores: int | None
    memory_bytes: int | None
    memory_available_bytes: int | None
    gpus: tuple[Gpu, ...]
    visible: str | None
    interconnect: dict[tuple[int, int], str]
    networks: tuple[Network, ...]
    system: str
    python: str
    torch: str

    def rows(self) -> list[tuple[str, str]]:
        """The table that ``repr`` and the notebook show: what, and how much."""
        usable, logical, cores = map(_or_unknown, (self.usable_cpus, self.logical_cpus, self.physical_cores))
        gpus = [f"GPU {g.index}: {g.name}, {_gib(g.memory_bytes)}, driver {g.driver}" for g in self.gpus]
        if self.gpus and self.visible is not None:
            gpus.append(f"CUDA_VISIBLE_DEVICES={self.visible}")
        between = describe_interconnect(self.interconnect) if len(self.gpus) > 1 else "–"
        return [
            ("processor", self.cpu),
            ("usable processors", f"{usable} of {logical} logical ({cores} physical cores)"),
            ("memory", f"{_gib(self.memory_bytes)}, {_gib(self.memory_available_bytes)} available"),
            ("GPUs", "; ".join(gpus) or "none: the course runs on the processors"),
            ("between GPUs", between),
            ("network", ", ".join(map(describe_network, self.networks)) or "none but loopback"),
            ("system", self.system),
            ("Python, torch", f"{self.python}, {self.torch}"),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{what:<18} {value}" for what, value in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th style="text-align:left">{html.escape(what)}</th>'
            f'<td style="text-align:left">{html.escape(value)}</td></tr>'
            for what, value in self.rows()
        )
        return f"<table>{cells}</table>"


def look(root: Path = Path("/"), run: Callable[[Sequence[str]], str] | None = None) -> Machine:
    """Find out what is in this machine.

    Args:
        root: where ``/proc`` and ``/sys`` are (tests give another folder).
        run: runs a command and returns what it prints (tests give their own).
    """
    run = run or run_command
    logical = _safe(os.cpu_count, None)
    affinity = _safe(lambda: len(os.sched_getaffinity(0)), logical)
    quota = _safe(lambda: cgroup_cpus(root), None)
    limits = [n for n in (affinity, quota) if n is not None]
    memory = _safe(psutil.virtual_memory, None)
    unknown: tuple[int | None, int | None] = (None, None)
    total, available = (memory.total, memory.available) if memory else unknown
    limit, used = _safe(lambda: cgroup_memory(root), unknown)
    if limit is not None and (total is None or limit < total):
        total = limit
        if used is not None:
            available = min(available if available is not None else limit, max(0, limit - used))
    no_gpus: tuple[Gpu, ...] = ()
    gpus = _safe(nvml.gpus, no_gpus)
    return Machine(
        cpu=_safe(lambda: _cpu_name(root, run), UNKNOWN) or UNKNOWN,
        usable_cpus=min(limits) if limits else None,
        logical_cpus=logical,
        physical_cores=_safe(lambda: psutil.cpu_count(logical=False), None),
        memory_bytes=total,
        memory_available_bytes=available,
        gpus=gpus,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        interconnect=_safe(nvml.interconnect, {}) if len(gpus) > 1 else {},
        networks=_safe(lambda: networks(root), ()),
        system=_safe(
            lambda: f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}", UNKNOWN
        ),
        python=platform.python_version(),
        torch=_safe(lambda: importlib.metadata.version("torch"), "torch is not installed"),
    )


# --- Processors, memory, networks ---


def cgroup_cpus(root: Path) -> int | None:
    """Processors that the container's quota allows, rounded up; None: no limit."""
    limits = []
    for folder in _cgroup_folders(root, "cpu"):
        modern, period = _read(folder / "cpu.max").split(), _read(folder / "cpu.cfs_period_us")
        quota = _read(folder / "cpu.cfs_quota_us")
        if len(modern) == 2 and modern[0].isdigit():
            limits.append(int(modern[0]) / int(modern[1]))
        elif quota.isdigit() and period.isdigit():  # "-1" means no limit
            limits.append(int(quota) / int(period))
    return max(1, -int(-min(limits) // 1)) if limits else None


def cgroup_memory(root: Path) -> tuple[int | None, int | None]:
    """Memory limit of the container and what is used of it (without file cache), in bytes; None: no limit."""
    found = []
    for folder in _cgroup_folders(root, "memory"):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            value, used = _read(folder / limit), _read(folder / usage)
            if value.isdigit() and int(value) < 2**62:  # version 1 writes a huge number for "no limit"
                match = re.search(rf"^{cache} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
                freeable = int(match.group(1)) if match else 0
                found.append((int(value), max(0, int(used) - freeable) if used.isdigit() else None))
    return min(found, key=lambda pair: pair[0], default=(None, None))


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroup and of those around it, versions 1 and 2."""
    base = root / "sys/fs/cgroup"
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            top = base if controllers == "" else base / controller
            here = top / path.lstrip("/")
            folders += [here, *(parent for parent in here.parents if parent.is_relative_to(top))]
    return folders or [base, base / controller]


def networks(root: Path = Path("/")) -> tuple[Network, ...]:
    """Network interfaces that are up, without loopback; InfiniBand ports too."""
    found = []
    for folder in sorted((root / "sys/class/net").glob("*")):
        if folder.name != "lo" and _read(folder / "operstate") != "down":
            speed = _read(folder / "speed")  # Mbit/s, or -1
            found.append(Network(folder.name, int(speed) / 1000 if speed.isdigit() and int(speed) else None))
    for rate in sorted((root / "sys/class/infiniband").glob("*/ports/*/rate")):
        match = re.match(r"([\d.]+) Gb/sec", _read(rate))
        found.append(Network(f"InfiniBand {rate.parts[-4]}", float(match.group(1)) if match else None))
    return tuple(found)


def describe_network(network: Network) -> str:
    """ "eth0 (25 Gbit/s)"."""
    speed = f"{network.gbit_per_s:g} Gbit/s" if network.gbit_per_s else "speed unknown"
    return f"{network.name} ({speed})"


def _cpu_name(root: Path, run: Callable[[Sequence[str]], str]) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    if match:
        return match.group(1).strip()
    if platform.system() == "Darwin":
        return run(["sysctl", "-n", "machdep.cpu.brand_string"]).strip()
    return platform.processor() or platform.machine()


# --- Small helpers ---


def run_command(command: Sequence[str]) -> str:
    """What a command prints, or nothing if it is missing, fails, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _safe(function: Callable[[], T], default: T) -> T:
    """A probe's result, or the default: no oddity of a machine may stop a lesson."""
    try:
        return function()
    except Exception:
        return default


def _or_unknown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _gib(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / GIB:.1f} GiB"


if __name__ == "__main__":
    print(look())
