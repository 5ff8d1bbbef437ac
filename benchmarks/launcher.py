"""How fast is ``%%ranks`` beside ipyparallel's ``%%px`` and accelerate's ``notebook_launcher``, and how much memory?

Every run has a fresh kernel (its start is not counted), from which these things are measured: the time from sending
the first cell to the first result of an all-reduce, the time of the next cell (and of an empty cell, and of one that
does nothing on the ranks: the kernel's own part, and the all-reduce's), the memory of the kernel and its idle ranks,
and how fast tensors of 100 MB come from four ranks to the notebook and go back. Runs are paired: in each round every
contestant runs once, and the order is rotated from round to round. Times and memory depend on the machine, so what
counts first are the ratios.

    make benchmarks                          everything, about ten minutes on two cores
    python benchmarks/launcher.py --quick    one round with few ranks, to see that it works
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import contestants
import here
from contestants import IPYPARALLEL, NOTEBOOK_LAUNCHER, OURS, Contestant
from fresh_kernel import FreshKernel, RunFailed

from utils.ranks.output import text_table

RANKS, OTHER_SIZES, QUICK_SIZES = 4, (2, 16), (2, 3)
ROUNDS, GROWTH_ROUNDS = 7, 3
FIRST_TIMEOUT, FIRST_TIMEOUT_PER_RANK, NEXT_TIMEOUT = 60.0, 8.0, 30.0  # seconds
IDLE_SECONDS = 0.5  # before memory is read, so that what was started has come to rest
ATTEMPTS = 5
LARGE_BYTES = 100_000_000
FIGURES = {
    "first": "fresh kernel to the first result",
    "next": "the next cell",
    "bare": "– one that does nothing on the ranks",
    "empty": "– an empty cell of the kernel alone",
    "memory": "memory of kernel and idle ranks",
    "pull": "a tensor of 100 MB from each rank",
    "push": "a tensor of 100 MB to each rank",
    "processes": "processes",
}
RATIOS = (("first", IPYPARALLEL, 0.09), ("first", NOTEBOOK_LAUNCHER, 0.75), ("next", IPYPARALLEL, 0.2))
RATIOS += (("next", NOTEBOOK_LAUNCHER, 0.05), ("memory", IPYPARALLEL, 0.3))
"""What this project promises: figure, beside whom, at most so many times theirs."""
LIMITS = (("next", 4, 3e-3), ("next", 16, 12e-3))
"""Figure, ranks, at most so many seconds."""
Run = dict[str, float]
"""The figures of one run: seconds, bytes of memory, bytes a second of ``pull`` and ``push``."""
Runs = dict[tuple[str, int], dict[int, Run]]
"""By the contestant's name and the number of ranks; then by round."""


def measure(contestant: Contestant, ranks: int, folder: Path) -> Run:
    """One run in a fresh kernel.

    Raises:
        RunFailed: it gives no result.
    """
    with FreshKernel(folder) as kernel:

        def typical(cell: str, ranks: int) -> float:
            cells = contestants.fill([cell], ranks)
            return statistics.median(kernel.run(cells, ranks, NEXT_TIMEOUT) for _ in range(contestant.repeats))

        timeout = FIRST_TIMEOUT + FIRST_TIMEOUT_PER_RANK * ranks
        run = {"first": kernel.run(contestants.fill(contestant.first, ranks), ranks, timeout)}
        run |= {"next": typical(contestant.next, ranks), "empty": typical("pass", 0)}
        if contestant.bare:
            run["bare"] = typical(contestant.bare, 0)
        run["memory"], run["processes"] = _memory(kernel, contestant.idle, ranks)
        if contestant.large and ranks == RANKS:
            kernel.run([contestant.large], 0, NEXT_TIMEOUT)
            for name, cell in (("pull", contestant.pull), ("push", contestant.push)):
                run[name] = ranks * LARGE_BYTES / kernel.run([cell], 0, NEXT_TIMEOUT)
    return run


def _memory(kernel: FreshKernel, idle: str | None, ranks: int) -> tuple[int, int]:
    """Bytes and processes. Of ranks that live only as long as their cell: while they wait for a file."""
    with tempfile.TemporaryDirectory() as folder:
        sent = kernel.send(contestants.fill([idle.replace("FOLDER", folder)], ranks)) if idle else []
        deadline = time.monotonic() + NEXT_TIMEOUT
        while sent and len(list(Path(folder).glob("idle-*"))) < ranks:
            if time.monotonic() > deadline:
                raise RunFailed("the idle ranks did not come up within the time-out")
            time.sleep(0.02)
        time.sleep(IDLE_SECONDS)
        found = kernel.memory()
        Path(folder, "go").touch()
        kernel.wait(sent, ranks if sent else 0, NEXT_TIMEOUT)
    return found


def play(
    runs: Runs, chosen: Sequence[Contestant], sizes: Sequence[int], rounds: range, folder: Path, notes: list[str]
) -> None:
    """Paired runs: every contestant once per round and size, the order rotated from round to round.

    A run that fails is repeated, so that a peer that hangs now and then still has its figures; each is noted.
    """
    for number in rounds:
        turn = number % len(chosen)
        for ranks in sizes:
            for contestant in [*chosen[turn:], *chosen[:turn]]:
                what = f"{contestant.name} on {ranks} ranks"
                _say(f"round {number + 1} of {rounds.stop}: {what}")
                for _ in range(ATTEMPTS):
                    try:
                        runs.setdefault((contestant.name, ranks), {})[number] = measure(contestant, ranks, folder)
                        break
                    except RunFailed as failure:
                        notes.append(f"A run of {what} failed: {failure}")
                        _say(notes[-1])
                else:
                    notes.append(f"{what} failed {ATTEMPTS} times in a row: that round goes without it.")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# --- The report ---------------------------------------------------------------------------------------------


def by_round(runs: Runs, contestant: Contestant, ranks: int, figure: str) -> dict[int, float]:
    """A figure of each round in which it was measured."""
    found = runs.get((contestant.name, ranks), {})
    return {number: run[figure] for number, run in found.items() if figure in run}


def shown(figure: str, value: float) -> str:
    """A figure with its unit."""
    if figure in ("pull", "push"):
        return f"{value / 1e9:.2f} GB/s"
    if figure in ("memory", "processes"):
        return f"{value / 1e6:.0f} MB" if figure == "memory" else f"{value:.0f}"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def figures(runs: Runs, chosen: Sequence[Contestant], ranks: int) -> Iterator[list[str]]:
    """The table of one number of ranks: the median of all rounds, the lowest and the highest."""
    rounds = max((len(found) for (_, size), found in runs.items() if size == ranks), default=0)
    yield [f"{ranks} ranks, medians of {rounds} rounds (lowest – highest)", *(one.name for one in chosen)]
    for figure, name in FIGURES.items():
        row = [name]
        for contestant in chosen:
            values = by_round(runs, contestant, ranks, figure).values()
            some = [shown(figure, of(values)) for of in (statistics.median, min, max)] if values else []
            row.append(f"{some[0]} ({some[1]} – {some[2]})" if some else "–")
        if set(row[1:]) != {"–"}:
            yield row


def promises(runs: Runs) -> Iterator[list[str]]:
    """What was promised and measured: the ratio of medians, and of the rounds that have both; times of ours."""
    yield ["%%ranks", "median", "single rounds", "target", ""]
    for figure, peer, target in RATIOS:
        ours, theirs = (by_round(runs, one, RANKS, figure) for one in (OURS, peer))
        if both := ours.keys() & theirs.keys():
            each = [ours[number] / theirs[number] for number in both]
            median = statistics.median(ours[n] for n in both) / statistics.median(theirs[n] for n in both)
            verdict = "met" if median <= target else "missed"
            span = f"{min(each):.3f} – {max(each):.3f}"
            yield [f"{FIGURES[figure]}, beside {peer.name}", f"{median:.3f}", span, f"≤ {target:g}", verdict]
    for figure, ranks, limit in LIMITS:
        if values := by_round(runs, OURS, ranks, figure).values():
            middle = statistics.median(values)
            span = f"{shown(figure, min(values))} – {shown(figure, max(values))}"
            verdict = "met" if middle <= limit else "missed"
            row = [f"{FIGURES[figure]}, {ranks} ranks", shown(figure, middle), span, f"≤ {shown(figure, limit)}"]
            yield [*row, verdict]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, and few ranks for the growth")
    parser.add_argument("--only-ours", action="store_true", help="this project alone: figures without ratios")
    options = parser.parse_args(arguments)
    if not Path("/proc/self/smaps_rollup").exists():
        sys.exit("This benchmark reads memory from /proc/*/smaps_rollup, so it needs Linux.")
    chosen = [OURS] if options.only_ours else [OURS, IPYPARALLEL, NOTEBOOK_LAUNCHER]
    missing = [one.package for one in chosen if importlib.util.find_spec(one.package) is None]
    if missing:
        sys.exit(f"This needs {' and '.join(missing)}: `make benchmarks` installs what is missing and runs it.")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    rounds, sizes = (1, QUICK_SIZES) if options.quick else (ROUNDS, OTHER_SIZES)
    facts = here.header(here.facts([one.package for one in chosen]))
    notes = ["Only one round: good for a look; figures to quote need the full run."] if options.quick else []
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="launcher-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if not options.quick:  # not counted: so that nobody's first round pays for reading files from the disk
            play({}, chosen, [RANKS], range(1), folder, notes)
        play(runs, chosen, [RANKS], range(rounds), folder, notes)
        play(runs, chosen, sizes, range(min(rounds, GROWTH_ROUNDS)), folder, notes)
    print(facts, *(f"{one.name + ':':20}{one.how}" for one in chosen), sep="\n", end="\n\n")
    tables = [figures(runs, chosen, ranks) for ranks in (RANKS, *sizes)] + [promises(runs)]
    for rows in tables:
        lines = text_table(list(rows))
        print(lines[0], "–" * max(map(len, lines)), *lines[1:], sep="\n", end="\n\n")
    print(*notes, sep="\n")


if __name__ == "__main__":
    main()
