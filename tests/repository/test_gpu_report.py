"""``make test-gpu`` as far as a machine without a GPU can try it: what it would run, and what it says here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from real_gpus import GPUS, needs_gpus

from utils.hardware.nvml import UsableGpus

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu_report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


@pytest.mark.skipif(GPUS > 0, reason="for machines without a GPU")
def test_without_a_gpu_it_says_so_and_runs_nothing() -> None:
    done = subprocess.run([sys.executable, "benchmarks/gpu.py"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no GPU that torch can use" in done.stderr and "make test" in done.stderr


def test_needing_a_gpu_is_a_mark() -> None:
    @needs_gpus(1)
    def test() -> None: ...

    assert {mark.name for mark in test.pytestmark} == {"gpu", "skipif"}


def test_it_runs_every_test_that_needs_a_gpu_and_every_notebook_of_the_core(gpu_report) -> None:
    tests, hardware, notebooks = gpu_report.parts()
    assert tests.command[-2:] == ("-m", "gpu")
    marked = {path for path in ROOT.glob("tests/**/test_*.py") if "real_gpus import" in path.read_text()}
    assert {ROOT / one for one in tests.command if one.startswith("tests/")} == marked != set()
    assert (ROOT / hardware.command[1]).exists()
    there = {path.name for path in ROOT.glob("notebooks/*.ipynb")}
    left_out = there - {Path(one).name for one in notebooks.command}
    assert left_out and all("frameworks" in name or "ray" in name or "tuning" in name for name in left_out)
    assert sum(part.limit_s for part in (tests, hardware, notebooks)) <= 600, "ten minutes"


def test_a_part_that_fails_or_hangs_is_reported_and_ended(gpu_report) -> None:
    def part(source: str, limit_s: float = 60.0):
        return gpu_report.run(gpu_report.Part("a part", (sys.executable, "-c", source), limit_s))

    assert part("print('figures')")[0].startswith("passed") and part("print('figures')")[1] == "figures"
    assert part("import sys; print('why'); sys.exit(3)")[0].startswith("FAILED with code 3")
    ending, text = part("import time; print('begun', flush=True); time.sleep(1000)", 3.0)
    assert ending.startswith("NOT FINISHED after 3 s") and text == "begun"


def test_an_unknown_gpu_is_simulated_from_what_was_measured_on_it(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import simgpu_vs_hardware as benchmark

    known = benchmark.hardware.A100
    fields = {"name": "L4", "multiprocessors": 58, "memory_bytes_per_s": known.memory_bytes_per_s / 4}
    slow = benchmark.dataclasses.replace(known, **fields)
    monkeypatch.setattr(benchmark, "CASES", benchmark.CASES[:1])
    (ours,), (a100s,) = benchmark.predict(slow, 1e-5), benchmark.predict(known, 1e-5)
    assert ours["peak"] == a100s["peak"] and ours["seconds"] > 1.5 * a100s["seconds"]


def test_where_there_are_gpus_every_part_goes_into_a_report_with_their_name(gpu_report, monkeypatch, tmp_path) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.setattr(gpu_report, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_report, "count_gpus", lambda: UsableGpus(2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    works, fails = (
        gpu_report.Part(title, (sys.executable, "-c", source), 60.0)
        for title, source in (("Works", "print('figures')"), ("Fails", "import sys; sys.exit('why')"))
    )
    for chosen, code in (([works], 0), ([works, fails], 1)):
        monkeypatch.setattr(gpu_report, "parts", lambda chosen=chosen: chosen)
        assert gpu_report.main() == code
    (file,) = (tmp_path / "benchmarks" / "results").iterdir()
    assert file.name == "gpu_2x_h100_80gb_hbm3.txt"
    report = file.read_text()
    for text in ("2 × NVIDIA H100", "machine:", "=== Works: passed", "figures", "=== Fails: FAILED with code 1", "why"):
        assert text in report


class _Event:
    """In place of CUDA's, which needs one."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) * 1e3


class _Torch:
    """Torch, but for what is set on it."""

    def __getattr__(self, name: str):
        return getattr(torch, name)


def _pretend_cuda(benchmark, monkeypatch, name: str) -> None:
    """The benchmark's torch has a GPU, which is the CPU: small tensors, and one small step for each case."""

    def on_cpu(make):
        def small(*sizes, device=None, **options):
            return make(*([min(size, 64) for size in sizes] if device == "cuda" else sizes), **options)

        return small

    properties = types.SimpleNamespace(total_memory=24 << 30, multi_processor_count=58)
    nothing = dict.fromkeys(("synchronize", "reset_peak_memory_stats", "empty_cache"), lambda: None)
    cuda = types.SimpleNamespace(
        **nothing,
        is_available=lambda: True,
        get_device_name=lambda: name,
        get_device_properties=lambda: properties,
        max_memory_allocated=lambda: 10**9,
        memory_allocated=lambda: held[0],
        Event=_Event,
    )
    held = [68_000_000]  # of cuBLAS, until it is told to let go
    inside = types.SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: held.__setitem__(0, 0))
    stand_in = _Torch()
    vars(stand_in).update(
        cuda=cuda, _C=inside, **{make: on_cpu(getattr(torch, make)) for make in ("zeros", "randn", "empty")}
    )
    monkeypatch.setattr(benchmark, "torch", stand_in)
    make_step = benchmark.make_step

    def step_of(case, device):
        return (lambda: torch.ones(8, 8) @ torch.ones(8, 8)) if device == "cuda" else make_step(case, device)

    def predicting(command, **_):
        given = json.loads(command[-1])
        gpu = benchmark.dataclasses.replace(benchmark.hardware.A100, **given["gpu"])
        return types.SimpleNamespace(stdout=json.dumps(benchmark.predict(gpu, given["launch_s"])))

    monkeypatch.setattr(benchmark, "CASES", benchmark.CASES[:1])
    monkeypatch.setattr(benchmark, "make_step", step_of)
    monkeypatch.setattr(benchmark.subprocess, "run", predicting)


@pytest.mark.parametrize(
    ("name", "shares"), [("NVIDIA H100 80GB HBM3", "calibrated"), ("NVIDIA L40S", "measured here")]
)
def test_with_a_gpu_each_step_is_predicted_and_measured(name, shares, monkeypatch, capsys) -> None:
    """Known and unknown: the latter's rates are measured first. (The figures mean nothing here.)"""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import simgpu_vs_hardware as benchmark

    _pretend_cuda(benchmark, monkeypatch, name)
    benchmark.main([])
    shown = capsys.readouterr().out
    assert "nothing was measured" not in shown and "per operator (measured here)" in shown
    assert ("(measured here)" in shown.split("shares:")[1].splitlines()[0]) is (shares == "measured here")
    (row,) = (line for line in shown.splitlines() if line.startswith("AlexNet"))
    assert "cuBLAS's workspaces too (0.07 GB)" in shown
    assert row.count(" GB") == row.count(" ms") == row.count("%") == 2, row
