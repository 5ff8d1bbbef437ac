"""All that this course promises on real GPUs, in one report: tests with NCCL, notebooks, simulated against measured.

    make test-gpu

It takes about ten minutes and writes ``benchmarks/results/gpu_<name>.txt``. Please send it in a pull request.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import here

from utils.hardware.nvml import count_gpus

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider")
LINES = 40  # of each part, from its end


@dataclass(frozen=True)
class Part:
    """One command of the report, and the seconds after which it is ended."""

    title: str
    command: Sequence[str]
    limit_s: float


def parts() -> list[Part]:
    """What is run, one after another."""
    notebooks = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("notebooks/*.ipynb"))
    core = [path for path in notebooks if path not in _with_frameworks()]
    # What notebooks print of devices and backends differs here from what is stored: that they run is what is tested.
    jobs = str(max(2, min(len(core), (os.cpu_count() or 1) // 2)))
    lax = (*PYTEST, "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "-n", jobs, "--dist", "loadfile")
    return [
        Part("Tests that need GPUs", (*PYTEST, *_tests(), "-m", "gpu"), 150),
        Part("Simulated against measured", (sys.executable, "benchmarks/simgpu_vs_hardware.py"), 150),
        Part("Notebooks of the core", (*lax, *core), 300),
    ]


def _tests() -> list[str]:
    """The files in which a test needs a GPU: to collect all others takes longer than these."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "needs_gpus" in file.read_text(encoding="utf-8")]


def _with_frameworks() -> set[str]:
    found = subprocess.run(
        [sys.executable, "-m", "course", "needs", "frameworks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {f"notebooks/{name}" for name in found.stdout.split()}


def run(part: Part) -> tuple[str, str]:
    """How it ended, in a word, and the last lines that it printed."""
    environment = {**os.environ, "COURSE_REAL_GPUS": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        part.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=part.limit_s)
            ending = "passed" if process.returncode == 0 else f"FAILED with code {process.returncode}"
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate()
            ending = f"NOT FINISHED after {part.limit_s:.0f} s"
    text = "\n".join(line.rstrip() for line in output.splitlines()[-LINES:])
    return f"{ending}, {time.monotonic() - began:.0f} s", text


def main() -> int:
    """Run all parts, and write the report. The exit code is that of a test: 0 if all passed."""
    found = count_gpus()
    import torch  # (counting comes first: it must not need CUDA)

    if not found.count or not torch.cuda.is_available():
        note = found.note or "This machine has no GPU that torch can use."
        print(f"{note} `make test` tests all that runs without one.", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name()
    sections = [here.header({"GPUs": f"{found.count} × {name}", **here.facts([]), "CUDA": str(torch.version.cuda)})]
    failed = False
    for part in parts():
        print(f"=== {part.title}", flush=True)
        ending, text = run(part)
        print(text, f"--- {ending}", sep="\n", flush=True)
        failed |= not ending.startswith("passed")
        sections.append(f"=== {part.title}: {ending}\n{text}")
    slug = re.sub(r"[^a-z0-9]+", "_", name.lower().removeprefix("nvidia ")).strip("_")
    file = ROOT / "benchmarks" / "results" / f"gpu_{found.count}x_{slug}.txt"
    file.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    print(f"written: {file.relative_to(ROOT)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
