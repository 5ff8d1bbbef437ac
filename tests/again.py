"""Run pytest; with ``--again``, run what failed once more in new processes, and say what it was.

``python tests/again.py [--again] FILE… -- PYTEST_OPTION…``

Thousands of tests and cells with real processes, clocks and sockets run in CI, and one that fails one time in a
thousand would stop it every few days. What fails twice is broken; what fails once is listed, so that its race is found.
A test is tried again by itself, a notebook as a whole, for its cells build on each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BROKEN = 10
"""More than so many failures are no accident."""


def run(what: Sequence[str], options: Sequence[str]) -> tuple[int, list[str]]:
    """Pytest's exit code, and the tests or notebooks that failed."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir={cache}", *what]
        code = subprocess.run(command, check=False).returncode
        try:
            failed = json.loads(Path(cache, "v/cache/lastfailed").read_text(encoding="utf-8"))
        except FileNotFoundError:
            failed = {}
    return code, sorted({name.partition("::")[0] if ".ipynb::" in name else name for name in failed})


def main(arguments: Sequence[str]) -> int:
    again = "--again" in arguments
    files = list(arguments[: arguments.index("--")])
    options = arguments[len(files) + 1 :]
    code, failed = run([file for file in files if file != "--again"], options)
    if code and again and 0 < len(failed) <= BROKEN:
        print("Failed, and run once more:", *failed, sep="\n    ", flush=True)
        code, failed = run(failed, options)
        print("Failed twice:" if code else "Passed the second time: look for the race.", *failed, sep="\n    ")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
