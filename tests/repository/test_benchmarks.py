"""The benchmarks run and print their figures. What they are depends on the machine: no times are asserted."""

from __future__ import annotations

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
@pytest.mark.parametrize(
    ("program", "count", "words"),
    [
        ("launcher", {"ranks, medians": 3}, "first result|next cell|memory of kernel|2 ranks|3 ranks|≤ 3.0 ms"),
        ("simgpu_overhead", {"ratio ": 3}, "plain CPU|FakeTensorMode|16 GPUs beside 2"),
        ("simgpu_ranks", {"ratio ": 2}, "FSDP2, 4 simulated ranks|largest rank process|512 GPUs"),
    ],
)
def test_a_benchmark_prints_its_figures(program: str, count: dict[str, int], words: str) -> None:
    more = ["--only-ours"] if program == "launcher" else []
    command = [sys.executable, str(PROGRAM.parent / f"{program}.py"), "--quick", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert {text: done.stdout.count(text) for text in count} == count
    assert [word for word in ("machine", "torch 2", *words.split("|")) if word not in done.stdout] == []


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
