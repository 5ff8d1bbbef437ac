"""Run make's targets one after another, also after one has failed, and say at the end what each took and what failed.

``python tests/stages.py [--minutes N] STAGE…`` where a stage is a target, with variables if need be:
``"numeric MKL_CBWR=AVX2"``. Stages that would begin after N minutes are left out, and listed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

NOTES = "STAGE_NOTES"
"""The environment variable with the file in which tests/again.py notes what failed, a line each."""


def run(stage: str, notes: Path) -> int:
    """Make's exit code; Ctrl-C reaches make by itself, and it is given the time to end what it started."""
    with subprocess.Popen(
        ["make", "--no-print-directory", *shlex.split(stage)], env={**os.environ, NOTES: str(notes)}
    ) as make:
        try:
            return make.wait()
        except KeyboardInterrupt:
            make.wait()
            raise


def noted(notes: Path) -> Iterator[str]:
    """What the tests noted, under headings."""
    lines = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines()] if notes.exists() else []
    for outcome in sorted({outcome for outcome, _ in lines}):
        yield f"{outcome.capitalize()}:"
        yield from sorted({f"    {name}" for kind, name in lines if kind == outcome})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("stages", nargs="+")
    options = parser.parse_args(arguments)
    start, table, failed, left_out = time.monotonic(), [], [], []
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        try:
            for stage in options.stages:
                began = time.monotonic()
                if began - start >= 60 * options.minutes:
                    left_out.append(stage)
                    continue
                print(f"\n=== {stage}", flush=True)
                code = run(stage, notes)
                minutes, seconds = divmod(round(time.monotonic() - began), 60)
                table.append(f"{stage:<40} {minutes:3}:{seconds:02}  {'FAILED' if code else 'passed'}")
                failed += [stage] if code else []
        except KeyboardInterrupt:
            failed.append(f"{stage} (interrupted)")
        print("", *table, *noted(notes), sep="\n")
    if left_out:
        print(f"Left out, for {options.minutes:g} minutes were over: {', '.join(left_out)}")
    print(
        f"Failed: {', '.join(failed)}"
        if failed
        else "All stages that ran passed."
        if left_out
        else "All stages passed."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
