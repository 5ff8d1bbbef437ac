"""``make test-gpu`` as far as a machine without a GPU can try it: what it would run, and what it says here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from real_gpus import GPUS, needs_gpus

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
    assert tests.command[-3:] == ("tests", "-m", "gpu")
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
