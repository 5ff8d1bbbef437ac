"""The launcher benchmark runs and prints its figures. What they are depends on the machine: no times are asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "launcher.py"

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from Linux's /proc"),
]


@pytest.mark.nightly
def test_the_launcher_benchmark_prints_figures_of_this_project(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(PROGRAM), "--quick", "--only-ours", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    for words in (
        "machine",
        "torch",
        "first result",
        "next cell",
        "memory of kernel",
        "2 ranks",
        "3 ranks",
        "≤ 3.0 ms",
    ):
        assert words in done.stdout
    found = json.loads(file.read_text())
    runs = found["runs"]
    assert [run["ranks"] for run in runs] == [4, 2, 3]
    assert all(run[what] > 0 for run in runs for what in ("first", "next", "bare", "empty"))
    assert all(run["memory"] > 1e6 for run in runs)
    assert [(limit["figure"], limit["ranks"], limit["target"]) for limit in found["limits"]] == [("next", 4, 0.003)]
    assert [run["processes"] for run in runs] == [run["ranks"] + 2 for run in runs]  # the kernel, and what forks


@pytest.mark.nightly
def test_the_launcher_benchmark_leaves_nothing_behind_when_it_is_ended(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, str(PROGRAM), "--quick", "--only-ours"]
    program = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        started: list[psutil.Process] = []
        deadline = time.monotonic() + 120
        while len(started) < 3 and time.monotonic() < deadline:  # the kernel, what forks, a rank
            started = psutil.Process(program.pid).children(recursive=True)
            time.sleep(0.02)
        assert len(started) >= 3
        program.send_signal(signal.SIGTERM)
        assert program.wait(120) == 128 + signal.SIGTERM
    finally:
        program.kill()
        program.communicate()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_the_benchmark_of_simulated_gpus_prints_its_three_ratios() -> None:
    command = [sys.executable, str(PROGRAM.parent / "simgpu_overhead.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ratio ") == 3
    for words in ("machine", "torch", "plain CPU", "FakeTensorMode", "16 GPUs beside 2"):
        assert words in done.stdout


@pytest.mark.nightly
def test_the_benchmark_of_ranks_with_simulated_gpus_prints_its_figures() -> None:
    command = [sys.executable, str(PROGRAM.parent / "simgpu_ranks.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ratio ") == 2
    for words in ("machine", "torch", "FSDP2, 4 simulated ranks", "largest rank process", "512 GPUs"):
        assert words in done.stdout


@pytest.mark.nightly
def test_the_benchmark_of_our_ddp_prints_a_ratio_for_each_model_and_world() -> None:
    command = [sys.executable, str(PROGRAM.parent / "ddp.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ratio ") == 8 and done.stdout.count("target ≤ 1.10") == 8
    for words in ("machine", "torch 2", "MLP", "ResNet", "2 ranks", "4 ranks", "bucket view"):
        assert words in done.stdout


def test_the_stored_report_is_what_is_simulated_and_meets_its_targets() -> None:
    """Of the rows with several GPUs a few are simulated here, of all others every one."""
    stored = (PROGRAM.parent / "results" / "simgpu_vs_published.txt").read_text(encoding="utf-8")
    assert "median error" in stored and "MISSED" not in stored
    assert len(_rows(stored)) >= 160, "each row has its source with the year"
    command = [sys.executable, str(PROGRAM.parent / "simgpu_vs_published.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    rows = _rows(done.stdout)
    assert len(rows) >= 120 and set(rows) <= set(_rows(stored)), "store what benchmarks/simgpu_vs_published.py prints"


def _rows(report: str) -> list[tuple[str, ...]]:
    """What has a source, without the spaces between the columns."""
    return [tuple(line.split()) for line in report.splitlines() if "(20" in line]
