"""Machine, date and versions: without them a figure says nothing."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def facts(packages: Sequence[str]) -> dict[str, str]:
    """Machine, date and versions, as lines of a report. Call it before the runs begin.

    Args:
        packages: names of packages whose versions matter, besides torch and IPython.
    """
    from utils.hardware import machine

    here = machine.look()
    cores = f"{here.usable_cpus} of {here.logical_cpus} logical processors"
    memory = f"{here.memory_bytes / 2**30:.0f} GiB" if here.memory_bytes else machine.UNKNOWN
    wanted = dict.fromkeys(["torch", "ipykernel", "ipython", *packages])
    versions = [f"{name} {importlib.metadata.version(name)}" for name in wanted]
    return {
        "machine": f"{here.cpu}, {cores}, {memory} of memory, {here.system}",
        "load before": f"{os.getloadavg()[0]:.2f} (processes at work in the minute before; 0 is a quiet machine)",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
    }


def header(found: dict[str, str]) -> str:
    """The facts as the first lines of a report."""
    return "\n".join(f"{name + ':':14}{text}" for name, text in found.items())


def begin(purpose: str | None, rounds: int, quick_rounds: int, arguments: Sequence[str] | None) -> tuple[int, str]:
    """Read the option ``--quick`` of a benchmark, and print the facts.

    Returns:
        How many rounds to run, and what to print at the end.
    """
    parser = argparse.ArgumentParser(description=(purpose or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{quick_rounds} rounds")
    quick = parser.parse_args(arguments).quick
    print(header(facts([])))
    return (quick_rounds, "Quick: good for a look; figures to quote need the full run.\n") if quick else (rounds, "")
