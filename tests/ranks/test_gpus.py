"""Which GPUs ranks may use: those that CUDA_VISIBLE_DEVICES leaves; one that cannot be used is named."""

from __future__ import annotations

import subprocess
import sys

import pytest
from nvml_support import PretendedGpu, pretend_nvml

from utils.hardware import nvml
from utils.hardware.nvml import UsableGpus, count_gpus

FOUR = [PretendedGpu("NVIDIA A100", 2**30) for _ in range(4)]


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("0,3", 2), ("0,9,1", 1), ("1,1", 0), ("GPU-2ab,GPU-0", 2)],
)
def test_gpus_are_counted_as_cuda_shows_them(monkeypatch, visible, count):
    pretend_nvml(monkeypatch, FOUR)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == UsableGpus(count)


def test_a_divided_gpu_is_named(monkeypatch):
    pretend_nvml(monkeypatch, [*FOUR[:1], PretendedGpu("NVIDIA A100", 2**30, divided=True)])
    found = count_gpus()
    assert found.count == 1
    assert "GPU 1 (MIG mode is on)" in found.note


def test_a_part_of_a_gpu_is_one_gpu_for_one_rank(monkeypatch):
    pretend_nvml(monkeypatch, [PretendedGpu("NVIDIA A100", 2**30, divided=True)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234,MIG-5678")
    found = count_gpus()
    assert found.count == 1
    assert "MIG-1234, MIG-5678" in found.note


def test_a_gpu_without_nvml_is_named(monkeypatch, tmp_path):
    pretend_nvml(monkeypatch, None)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(nvml, "_DEVICE_FILES", (f"{tmp_path}/nvidia[0-9]*",))
    found = count_gpus()
    assert found.count == 0
    assert "nvidia0" in found.note and "NVML" in found.note and "compute,utility" in found.note


def test_where_nothing_speaks_for_a_gpu_there_is_no_note(monkeypatch, tmp_path):
    pretend_nvml(monkeypatch, None)
    monkeypatch.setattr(nvml, "_DEVICE_FILES", (f"{tmp_path}/nvidia[0-9]*",))
    assert count_gpus() == UsableGpus(0)


@pytest.mark.parametrize("maker", ["NVIDIA", "another maker"])
def test_on_wsl2_only_nvidias_driver_speaks_for_a_gpu(monkeypatch, tmp_path, maker):
    """/dev/dxg is there with any GPU, and /dev/nvidia0 never."""
    pretend_nvml(monkeypatch, None)
    for name in ("dev/dxg", *["usr/lib/wsl/lib/libcuda.so.1"] * (maker == "NVIDIA")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(nvml, "_DEVICE_FILES", [f"{tmp_path}{pattern}" for pattern in nvml._DEVICE_FILES])
    assert ("/usr/lib/wsl/lib" in count_gpus().note) == (maker == "NVIDIA")
    pretend_nvml(monkeypatch, FOUR[:1])
    assert count_gpus() == UsableGpus(1)


def test_counting_gpus_imports_no_torch():
    code = "import sys; from utils.hardware.nvml import count_gpus; count_gpus(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
