"""Run pytest; with ``--again``, run what failed once more in new processes, and say what it was.

``python tests/again.py [--again] [--store-durations] FILE… -- PYTEST_OPTION…``

Thousands of tests and cells with real processes, clocks and sockets run in CI, and one that fails one time in a
thousand would stop it every few days. What fails twice is broken; what fails once is listed, so that its race is found.
A test is tried again by itself, a notebook as a whole, for its cells build on each other. A run that did not come to
its end (a crash, an error in collecting, a stop) is never tried again: nobody knows what else would have failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("support")))
from dealing import group, length, store, stored
from stages import NOTES

BROKEN = 10
"""More than so many failures are no accident."""


class Record:
    """A plugin that sees what failed, how long each group took, and whether the run came to its end."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.stopped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[group(report.nodeid)] += report.duration
        if report.failed:
            notebook, _, cell = report.nodeid.partition(".ipynb::")
            self.failed.add(f"{notebook}.ipynb" if cell else report.nodeid)

        self._see_skipped(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.stopped |= report.failed
        self._see_skipped(report)

    def _see_skipped(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(
            report.longrepr, tuple
        ):  # (file, line, reason), unless it was an expected failure
            self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_keyboard_interrupt(self) -> None:  # pytest.exit() too
        self.stopped = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self.stopped |= error is not None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.stopped |= bool(session.shouldstop or session.shouldfail)


def main(arguments: Sequence[str]) -> int:
    end = arguments.index("--")
    options = list(arguments[end + 1 :])
    stage = options[options.index("-m") + 1] if "-m" in options else ""
    before = stored(stage)
    files = [argument for argument in arguments[:end] if not argument.startswith("--")]
    files.sort(key=lambda file: -length(file, before))
    notes = os.environ.pop(NOTES, None)  # programs that tests start have nothing to note here

    record = Record()
    code = int(pytest.main([*options, *files], plugins=[record]))
    failed = sorted(record.failed)
    if "--store-durations" in arguments[:end]:
        store(stage, record.seconds)
    outcome = "failed"
    if code == 1 and "--again" in arguments[:end] and not record.stopped and len(failed) <= BROKEN:
        print("\nFailed, and run once more:", *failed, sep="\n    ", flush=True)
        code = subprocess.run([sys.executable, __file__, *failed, "--", *options], check=False).returncode
        outcome = "failed twice" if code else "passed the second time: look for the race"
        print(f"{outcome.capitalize()}:", *failed, sep="\n    ", flush=True)
    elif code and (record.stopped or not failed):
        outcome = "failed in a run that did not come to its end"
        failed = failed or ["(no test)"]
    if notes:
        with open(notes, "a", encoding="utf-8") as file:
            file.writelines(f"{outcome}\t{name}\n" for name in failed)
            file.writelines(f"skipped\t{count} × {reason}\n" for reason, count in record.skipped.items())
    return code


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m pytest` has it
    sys.exit(main(sys.argv[1:]))
