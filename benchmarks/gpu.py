"""All that this course promises on real GPUs: tests with NCCL, simulated against measured, notebooks of the core.

    make test-gpu

It takes about ten minutes and writes ``your_gpus.json``, as the notebook docs/your_gpus.ipynb does, with how each part
ended. The notebook's last cell says how to send it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import your_gpus
from here import ROOT

from course import outline
from utils.hardware.nvml import count_gpus

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
    core = [f"notebooks/{lecture.name}.ipynb" for lecture in outline.lectures() if not lecture.needs]
    # What notebooks print of devices and backends differs here from what is stored: that they run is what is tested.
    jobs = str(max(2, min(len(core), (os.cpu_count() or 1) // 2)))
    lax = (*PYTEST, "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "-n", jobs, "--dist", "loadfile")
    return [
        Part("Tests that need GPUs", (*PYTEST, *_tests(), "-m", "gpu"), 120),
        Part("Simulated against measured", (sys.executable, "benchmarks/your_gpus.py"), 230),
        Part("Notebooks of the core", (*lax, *core), 250),
    ]


def _tests() -> list[str]:
    """The files in which a test needs a GPU: to collect all others takes longer than these."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "needs_gpus" in file.read_text(encoding="utf-8")]


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
    if not found.count or not torch.cuda.is_available():
        note = found.note or "This machine has no GPU that torch can use."
        print(f"{note} `make test` tests all that runs without one.", file=sys.stderr)
        return 2
    file = ROOT / your_gpus.FILE
    file.unlink(missing_ok=True)
    tests: dict[str, list[str]] = {}
    for part in parts():
        print(f"=== {part.title}", flush=True)
        ending, text = run(part)
        print(text, f"--- {ending}", sep="\n", flush=True)
        tests[part.title] = [ending, *re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)]
    found = json.loads(file.read_text("utf-8")) if file.exists() else your_gpus.results(your_gpus.look(), {}, steps=[])
    file.write_text(your_gpus.as_text(found | {"tests": tests}), encoding="utf-8")
    print(f"written: {file.relative_to(ROOT)}")
    return int(any(not ending.startswith("passed") for ending, *_ in tests.values()))


if __name__ == "__main__":
    sys.exit(main())
