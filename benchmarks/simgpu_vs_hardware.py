"""Simulated against measured: every file of ``benchmarks/measured`` that people made with ``your_gpus.ipynb``.

    python benchmarks/simgpu_vs_hardware.py            all files, simulated with today's simgpu
    python benchmarks/simgpu_vs_hardware.py FILE …     these (one that somebody sent is examined first)

Steps and all-reduces of NCCL are compared; then, for each program, the median and the worst error over all files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import steps
import your_gpus
from here import ROOT
from steps import Program

from utils.ranks.output import text_table

MEASURED = ROOT / "benchmarks" / "measured"
Errors = dict[str, list[float]]


def files() -> list[Path]:
    """Those of this form. (``h100.json`` has operators: ``operators.py`` reads it.)"""
    return [path for path in sorted(MEASURED.glob("*.json")) if json.loads(path.read_text("utf-8")).get("form")]


def simulated_anew(found: dict[str, Any]) -> dict[str, Any]:
    """The same file with what today's ``simgpu`` says."""
    machine, of = found["machine"], found.get("all_reduce") or {}
    nccl = of if of.get("backend") == "nccl" else {"sizes": [], "ranks": 1}
    programs = [Program(**row["program"]) for row in found["steps"]]
    launch_s = machine.get("launch_s") or 10e-6
    ours = steps.simulate(steps.simulated_gpu(machine), programs, nccl["sizes"], nccl["ranks"], launch_s)
    rows = [row | {"simulated": one} for row, one in zip(found["steps"], ours["steps"], strict=True)]
    return found | {"steps": rows, "all_reduce": nccl | {"simulated": ours["all_reduce"]}}


def compare(found: dict[str, Any], times: Errors, memory: Errors) -> str:
    """The tables of one file; its errors are added to those of others."""
    machine = found["machine"]
    links = f", {machine['links']}" if machine.get("links") else ""
    lines = [f"{machine['gpus']} × {machine['gpu']}{links}, torch {machine['torch']}, {found['date']}"]
    lines.append(your_gpus.table(found["steps"]))
    for row in found["steps"]:
        for field, errors in (("seconds", times), ("peak_bytes", memory)):
            if row.get(field) and row["simulated"].get(field):
                errors[Program(**row["program"]).name].append(row["simulated"][field] / row[field] - 1)
    of = found["all_reduce"]
    for nbytes, real, ours in zip(of["sizes"], of.get("seconds", []), of["simulated"], strict=bool(of["sizes"])):
        lines.append(f"all-reduce, {nbytes / 2**20:10.4f} MiB: {ours * 1e6:10.1f} µs, measured {real * 1e6:10.1f} µs "
                     f"{your_gpus.off(ours, real):>7}")  # fmt: skip
        times[f"all-reduce, {'1 MiB and more' if nbytes >= 2**20 else 'less than 1 MiB'}"].append(ours / real - 1)
    return "\n".join(lines)


def summary(times: Errors, memory: Errors) -> str:
    """For each program, over all files: how many measured it, the median error without its sign, and the worst."""
    rows = [["over all files", "files", "time: median", "worst", "memory: median", "worst"]]
    for name, errors in times.items():
        row = [name, str(len(errors))]
        for each in (errors, memory.get(name)):
            middle = f"{statistics.median(map(abs, each)):.0%}" if each else "–"
            row += [middle, f"{max(each, key=abs):+.0%}" if each else "–"]
        rows.append(row)
    return "\n".join(text_table(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report. The exit code is 1 if a file is not of the form, and the reason is printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    chosen: list[Path] = parser.parse_args(arguments).files or files()
    wrong = [f"{path.name}: {fault}" for path in chosen for fault in your_gpus.faults(path.read_text("utf-8"))]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    times: Errors = defaultdict(list)
    memory: Errors = defaultdict(list)
    for path in chosen:
        print(compare(simulated_anew(json.loads(path.read_text("utf-8"))), times, memory), end="\n\n")
    print(summary(times, memory))
    print("\nMeasured memory has the workspaces of cuBLAS and cuDNN too; the simulation leaves them out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
