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
import tempfile
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


def _once_more(names: Sequence[str], options: Sequence[str]) -> tuple[int, set[str]]:
    """Run these in new processes. Returns the exit code, and which of them passed (none, if it did not end well)."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as notes:
        command = [sys.executable, __file__, *names, "--", *options]
        code = subprocess.run(command, env=os.environ | {NOTES: notes.name}, check=False).returncode
        found = [line.rstrip("\n").split("\t", 1) for line in notes]
    again = {name for outcome, name in found if outcome == "failed"}
    ended = code == 0 or (code == 1 and not any(outcome.startswith("failed in") for outcome, _ in found))
    return code, set(names) - again if ended else set()


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
    outcomes = dict.fromkeys(failed, "failed")
    if code == 1 and "--again" in arguments[:end] and not record.stopped and len(failed) <= BROKEN:
        print("\nFailed, and run once more:", *failed, sep="\n    ", flush=True)
        code, once = _once_more(failed, options)
        outcomes = {
            name: "passed the second time: look for the race" if name in once else "failed twice" for name in failed
        }
        for outcome in sorted(set(outcomes.values())):
            names = [name for name in failed if outcomes[name] == outcome]
            print(f"{outcome.capitalize()}:", *names, sep="\n    ", flush=True)
    elif code and (record.stopped or not failed):
        outcomes = dict.fromkeys(failed or ["(no test)"], "failed in a run that did not come to its end")
    if notes:
        with open(notes, "a", encoding="utf-8") as file:
            file.writelines(f"{outcome}\t{name}\n" for name, outcome in outcomes.items())
            file.writelines(f"skipped\t{count} × {reason}\n" for reason, count in record.skipped.items())
    return code


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m pytest` has it
    sys.exit(main(sys.argv[1:]))
