"""Run notebooks with nbval; with ``--again``, run those that failed once more, whole, and say which they were.

``python tests/run_notebooks.py [--again] [--lax] FILE… -- PYTEST_OPTION…``

Several hundred cells with real processes, clocks and sockets run in CI, and one that fails one time in a thousand would
stop it every few days. A notebook that fails twice is broken; one that fails once is listed, so that its race is found.
Cells build on each other, so a single cell cannot be tried again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def run(files: Sequence[str], options: Sequence[str]) -> tuple[int, list[str]]:
    """Pytest's exit code, and the notebooks in which a cell failed."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir={cache}", *files]
        code = subprocess.run(command, check=False).returncode
        try:
            failed = json.loads(Path(cache, "v/cache/lastfailed").read_text(encoding="utf-8"))
        except FileNotFoundError:
            failed = {}
    return code, sorted({cell.partition("::")[0] for cell in failed})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2].strip("`"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--lax", action="store_true")
    parser.add_argument("files", nargs="+")
    before, _, options = "\0".join(arguments).partition("\0--\0")
    given = parser.parse_args(before.split("\0"))
    options = ["--nbval-lax" if given.lax else "--nbval", *options.split("\0")]
    code, failed = run(given.files, options)
    if code and failed and given.again:
        print(f"Failed, and run once more: {', '.join(failed)}", flush=True)
        code, failed = run(failed, options)
        print(f"Failed twice: {', '.join(failed)}" if code else "Passed the second time: look for the race.")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
