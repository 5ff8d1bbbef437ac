"""How fast is ``%%ranks`` beside ipyparallel's ``%%px`` and accelerate's ``notebook_launcher``, and how much memory?

Every run has a fresh kernel (its start is not counted), from which these things are measured: the time from sending
the first cell to the first result of an all-reduce on four ranks, the time of the next cell (and of an empty cell, and
of one that does nothing on the ranks: the kernel's own part, and the all-reduce's), the memory of the kernel and its
idle ranks, and how fast tensors of 100 MB come from four ranks to the notebook and go back. Runs are paired: in each
round every contestant runs once, and the order is rotated from round to round. Times and memory depend on the machine,
so what counts first are the ratios.

    make benchmarks                          everything, about ten minutes on two cores
    python benchmarks/launcher.py --quick    one round with few ranks, to see that it works
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import contestants
import here
import report
from contestants import Contestant
from fresh_kernel import FreshKernel, RunFailed
from report import Run

RANKS = 4
OTHER_SIZES, QUICK_SIZES = (2, 16), (2, 3)
ROUNDS, QUICK_ROUNDS, FEWEST_ROUNDS = 7, 1, 7
GROWTH_ROUNDS = 3
FIRST_TIMEOUT, FIRST_TIMEOUT_PER_RANK, NEXT_TIMEOUT = 60.0, 8.0, 30.0  # seconds
IDLE_SECONDS = 0.5  # before memory is read, so that what was started has come to rest
ATTEMPTS = 5
LARGE_BYTES = 100_000_000


def measure(contestant: Contestant, ranks: int, number: int, folder: Path) -> Run:
    """One run in a fresh kernel.

    Raises RunFailed if it gives no result.
    """
    with FreshKernel(folder) as kernel:
        timeout = FIRST_TIMEOUT + FIRST_TIMEOUT_PER_RANK * ranks
        first = kernel.run(contestants.fill(contestant.first, ranks), ranks, timeout)
        following = _typical(kernel, contestant.next, ranks, contestant.repeats)
        empty = _typical(kernel, "pass", 0, contestant.repeats)
        bare = _typical(kernel, contestant.bare, 0, contestant.repeats) if contestant.bare else None
        if contestant.idle is None:
            memory, processes = _memory(kernel)
        else:
            memory, processes = _memory_within_cell(kernel, contestant.idle, ranks)
        pull = push = None
        if contestant.large and ranks == RANKS:
            kernel.time(contestant.large, NEXT_TIMEOUT)
            pull = ranks * LARGE_BYTES / kernel.time(contestant.pull, NEXT_TIMEOUT)
            push = ranks * LARGE_BYTES / kernel.time(contestant.push, NEXT_TIMEOUT)
    return Run(contestant.name, ranks, number, first, following, memory, processes, empty, bare, pull, push)


def _typical(kernel: FreshKernel, cell: str, ranks: int, repeats: int) -> float:
    return statistics.median(kernel.run(contestants.fill([cell], ranks), ranks, NEXT_TIMEOUT) for _ in range(repeats))


def _memory(kernel: FreshKernel) -> tuple[int, int]:
    time.sleep(IDLE_SECONDS)
    return kernel.memory(), len(kernel.processes())


def _memory_within_cell(kernel: FreshKernel, cell: str, ranks: int) -> tuple[int, int]:
    """Memory of ranks that live only as long as their cell: it is read while they wait for a file."""
    with tempfile.TemporaryDirectory() as folder:
        sent = kernel.send(contestants.fill([cell.replace("FOLDER", folder)], ranks))
        deadline = time.monotonic() + NEXT_TIMEOUT
        while len(list(Path(folder).glob("idle-*"))) < ranks:
            if time.monotonic() > deadline:
                raise RunFailed("the idle ranks did not come up within the time-out")
            time.sleep(0.02)
        found = _memory(kernel)
        Path(folder, "go").touch()
        kernel.wait(sent, ranks, NEXT_TIMEOUT)
    return found


def play(chosen: Sequence[Contestant], sizes: Sequence[int], rounds: int, folder: Path, notes: list[str]) -> list[Run]:
    """Paired runs: every contestant once per round and size, the order rotated from round to round."""
    runs = []
    for number in range(rounds):
        turn = number % len(chosen)
        for ranks in sizes:
            for contestant in [*chosen[turn:], *chosen[:turn]]:
                _say(f"round {number + 1} of {rounds}, {ranks} ranks: {contestant.name}")
                runs.append(_measure_surely(contestant, ranks, number, folder, notes))
    return [run for run in runs if run is not None]


def _measure_surely(contestant: Contestant, ranks: int, number: int, folder: Path, notes: list[str]) -> Run | None:
    """A run, repeated where it fails, so that a peer that hangs now and then still has its figures; each is noted."""
    for _ in range(ATTEMPTS):
        try:
            return measure(contestant, ranks, number, folder)
        except RunFailed as failure:
            notes.append(f"A run of {contestant.name} on {ranks} ranks failed: {failure}")
            _say(notes[-1])
    notes.append(f"{contestant.name} on {ranks} ranks failed {ATTEMPTS} times in a row: that round goes without it.")
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if not Path("/proc/self/smaps_rollup").exists():
        sys.exit("This benchmark reads memory from /proc/*/smaps_rollup, so it needs Linux.")
    chosen = [contestants.OURS] if options.only_ours else list(contestants.ALL)
    missing = [one.package for one in chosen if importlib.util.find_spec(one.package) is None]
    if missing:
        sys.exit(f"This needs {' and '.join(missing)}: `make benchmarks` installs what is missing and runs it.")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))

    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    growth_rounds = min(rounds, GROWTH_ROUNDS)
    facts = here.facts([one.package for one in chosen])
    notes: list[str] = []
    if rounds < FEWEST_ROUNDS:
        notes.append(f"Only {rounds} rounds: good for a look; figures to quote need at least {FEWEST_ROUNDS}.")
    with tempfile.TemporaryDirectory(prefix="launcher-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if not options.quick:
            for contestant in chosen:  # so that nobody's first round pays for reading files from the disk
                _say(f"not counted: {contestant.name}")
                _measure_surely(contestant, RANKS, -1, folder, notes)
        runs = play(chosen, [RANKS], rounds, folder, notes)
        runs += play(chosen, QUICK_SIZES if options.quick else OTHER_SIZES, growth_rounds, folder, notes)

    if not runs:
        sys.exit("No run gave a result:\n" + "\n".join(notes))
    print(report.report(facts, chosen, runs, RANKS, notes))
    if options.json:
        content = {
            "facts": facts,
            "ratios": [asdict(ratio) | {"met": ratio.met} for ratio in report.ratios(runs, RANKS)],
            "limits": [asdict(limit) | {"met": limit.met} for limit in report.limits(runs)],
            "notes": notes,
            "runs": [asdict(run) for run in runs],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, help=f"paired runs on {RANKS} ranks (default {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="one round, and few ranks for the growth")
    parser.add_argument("--only-ours", action="store_true", help="this project alone: figures without ratios")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run's figures to this file too")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds takes a number from 1 on.")
    return options


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
