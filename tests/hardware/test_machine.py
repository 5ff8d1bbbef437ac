"""What utils.hardware.machine finds: GPUs of a pretended NVML, container limits, and a machine with nothing."""

import os
import subprocess
import sys
from pathlib import Path

from nvml_support import PretendedGpu, pretend_nvml

from utils.hardware import machine, nvml
from utils.hardware.machine import Gpu, Network, cgroup_cpus, cgroup_memory, look, networks, run_command
from utils.hardware.nvml import describe_interconnect


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


H100 = "NVIDIA H100 80GB HBM3"
H100S = [PretendedGpu(H100, 85520809984) for _ in range(8)]


def test_gpus_are_told_by_nvml(monkeypatch):
    pretend_nvml(monkeypatch, H100S)
    assert len(nvml.gpus()) == 8
    assert nvml.gpus()[7] == Gpu(7, H100, 85520809984, "550.54.15")


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    pretend_nvml(monkeypatch, None)
    assert nvml.gpus() == () and nvml.interconnect() == {}


def test_links_are_told_for_each_pair_once(monkeypatch):
    """Four GPUs, bonded in pairs; 0 and 2 are on one processor, as are 1 and 3."""
    distances = {(0, 2): 30, (1, 3): 30}
    fours = [PretendedGpu("NVIDIA A6000", 2**30, links=[mate] * 4, distances=distances) for mate in (1, 0, 3, 2)]
    pretend_nvml(monkeypatch, fours)
    pairs = nvml.interconnect()
    assert pairs == {(0, 1): "NV4", (0, 2): "PHB", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "PHB", (2, 3): "NV4"}
    words = describe_interconnect(pairs)
    assert words.startswith("NVLink, 4 links")
    assert "PCIe, through the processor" in words and "between processors" in words


def test_container_limits_version_2(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",  # the limit of a group further out counts too
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": "4294967296\n",
            "sys/fs/cgroup/slice/job/memory.current": "3000000000\n",
            "sys/fs/cgroup/slice/job/memory.stat": "anon 1\ninactive_file 1000000000\n",
            "sys/fs/cgroup/slice/memory.max": "max\n",
        },
    )
    assert cgroup_cpus(root) == 2, "1.5 processors are two processors at most, part of the time"
    assert cgroup_memory(root) == (4294967296, 2000000000)


def test_networks_that_are_up(tmp_path):
    root = write(
        tmp_path,
        {
            "sys/class/net/lo/operstate": "unknown",
            "sys/class/net/eth0/operstate": "up",
            "sys/class/net/eth0/speed": "25000",
            "sys/class/net/eth1/operstate": "down",
            "sys/class/net/virt0/operstate": "up",
            "sys/class/net/virt0/speed": "-1",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        },
    )
    assert networks(root) == (Network("eth0", 25.0), Network("virt0", None), Network("InfiniBand mlx5_0", 400.0))


def test_look_on_a_big_machine_in_a_small_container(tmp_path, monkeypatch):
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fine Processor 9000\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 100000",
            "sys/fs/cgroup/memory.max": "1000000",
            "sys/fs/cgroup/memory.current": "400000",
        },
    )
    pretend_nvml(monkeypatch, [PretendedGpu(H100, 85520809984, links=["switch"] * 4) for _ in range(8)])
    found = look(root)
    assert found.cpu == "Fine Processor 9000"
    assert found.usable_cpus == 1
    assert (found.memory_bytes, found.memory_available_bytes) == (1000000, 600000)
    assert len(found.gpus) == 8 and found.interconnect[0, 1] == "NV4"
    assert "NVIDIA H100" in repr(found) and "NVIDIA H100" in found._repr_html_()


def test_look_never_raises(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("a probe that fails")

    for name in ("_cpu_name", "cgroup_cpus", "cgroup_memory", "networks"):
        monkeypatch.setattr(machine, name, broken)
    for name in ("cpu_count", "virtual_memory"):
        monkeypatch.setattr(machine.psutil, name, broken)
    monkeypatch.setattr(os, "cpu_count", broken)
    monkeypatch.setattr(nvml, "gpus", broken)
    monkeypatch.setattr(os, "sched_getaffinity", broken, raising=False)
    monkeypatch.setattr(machine.importlib.metadata, "version", broken)
    found = look(tmp_path, run=broken)
    assert found.cpu == "unknown"
    assert found.usable_cpus is found.memory_bytes is None
    assert found.gpus == () and found.networks == ()
    assert "unknown" in repr(found)


def test_look_at_this_machine():
    found = look()
    assert 1 <= found.usable_cpus <= found.logical_cpus
    assert 0 < found.memory_available_bytes <= found.memory_bytes
    assert found.torch[0].isdigit()
    assert [what for what, _ in found.rows()][:2] == ["processor", "usable processors"]


def test_looking_does_not_import_torch():
    imports = "from utils import draw; from utils.hardware import links, machine; from utils.training import models"
    code = f"import sys; {imports}; machine.look(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_missing_slow_or_failing_command_prints_nothing(monkeypatch):
    monkeypatch.setattr(machine, "TIMEOUT_S", 0.2)
    assert run_command(["no-such-command-here"]) == ""
    assert run_command([sys.executable, "-c", "import time; print('x', flush=True); time.sleep(60)"]) == ""
    assert run_command([sys.executable, "-S", "-c", "print('x'); raise SystemExit(3)"]) == ""
    monkeypatch.setattr(machine, "TIMEOUT_S", 30)
    assert run_command([sys.executable, "-S", "-c", "print('x')"]) == "x\n"
