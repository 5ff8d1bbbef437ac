"""What a learner's function chooses on simulated machines with data loaders, and what the check says about it."""

from __future__ import annotations

from typing import Any

from utils.checks.verdicts import Wrong
from utils.training.simulated_loader import AHEAD, DoesNotFit, Machine

TOLERANCE = 0.05
MOST_BATCHES = 2_000


class _JudgedMachine(Machine):
    """Says what it refuses as a check does."""

    def measure(self, workers: int, batches: int) -> list[float]:
        try:
            return super().measure(workers, batches)
        except TypeError as error:
            raise Wrong(f"{error}") from None

    def refuse(self, workers: int) -> None:
        try:
            super().refuse(workers)
        except DoesNotFit as error:
            raise Wrong(error.sentence, measured=error.measured, expected=error.expected) from None


def choices(choose: Any, machines: dict[str, Machine]) -> list[dict[str, Any]]:
    """What a learner's function chooses on each machine, and what it measured there."""
    found = []
    for name, machine in machines.items():
        machine = _JudgedMachine(**vars(machine))
        try:
            chosen = choose(machine.measure, machine.cores, machine.ranks, machine.worker_bytes, machine.free_bytes)
        except Wrong as wrong:
            raise _on(name, wrong) from None
        found.append({"chosen": chosen, "log": machine.log})
    return found


def _on(name: str, wrong: Wrong) -> Wrong:
    """The same, with the machine's name."""
    return wrong.saying(f"{wrong.sentence.rstrip('.')}. See the machine with {name}")


def within_tolerance(seconds: dict[int, float]) -> int:
    """The smallest number of workers whose batches take at most 5 % longer than the fastest ones."""
    best = min(seconds.values())
    return min(workers for workers, one in seconds.items() if one <= best * (1 + TOLERANCE))


def judge_choice(name: str, machine: Machine, chosen: Any, log: list[tuple[int, list[float]]]) -> int:
    """Look at the choice for one machine, raise Wrong with the likely mistake; returns the batches that it measured."""
    where = f"See the machine with {name}"
    if type(chosen) is not int or chosen < 0:
        raise Wrong(f"choose_workers returns a whole number of workers. {where}", measured=chosen)
    batches = sum(len(seconds) for _, seconds in log)
    if batches > MOST_BATCHES:
        raise Wrong(
            f"measuring takes longer than it saves. {where}",
            measured=f"{batches:,} batches",
            expected=f"at most {MOST_BATCHES:,}",
        )
    try:
        _JudgedMachine(**vars(machine)).refuse(chosen)
    except Wrong as wrong:
        raise _on(name, wrong) from None
    true = {workers: machine.true_seconds(workers) for workers in range(machine.most + 1)}
    right = within_tolerance(true)
    if chosen == right:
        return batches
    if not log:
        why = "nothing is measured: no rule of thumb fits all machines"
    elif right not in {workers for workers, _ in log}:
        why = f"{right} workers are never tried"
    else:
        why = _mistake(log, chosen)
    if not why and true[chosen] <= true[right] * (1 + TOLERANCE):
        why = "fewer workers are within 5 % of the fastest, and take less memory"
    raise Wrong(
        f"{why or 'this is not the smallest number within 5 % of the fastest'}. {where}",
        measured=f"{chosen} workers, {1000 * true[chosen]:.1f} ms a batch (simulated)",
        expected=f"{right} workers, {1000 * true[right]:.1f} ms",
    )


def _mistake(log: list[tuple[int, list[float]]], chosen: int) -> str:
    """Which way to read the measured seconds leads to this choice."""
    if max(len(seconds) for _, seconds in log) <= 2 * AHEAD:
        return "a few batches tell nothing: the first one waits for the workers to start, the next ones lay ready"
    by_workers: dict[int, list[float]] = dict(log)  # the last measurement of each
    settled = {workers: seconds[2 * AHEAD * workers :] or seconds for workers, seconds in by_workers.items()}
    if chosen == min(settled, key=lambda workers: _mean(settled[workers])):
        return "this is the fastest one measured, but fewer workers are within 5 % of it: the rest is noise"
    if chosen == within_tolerance({workers: sorted(one)[len(one) // 2] for workers, one in settled.items()}):
        return (
            "the median is fooled: batches come in bursts, one from each worker and then a long wait. What counts is "
            "the mean over whole rounds"
        )
    if chosen == within_tolerance({workers: _mean(one) for workers, one in by_workers.items()}):
        return "the start of the workers is counted, and it happens once in an epoch: leave the first batches out"
    if chosen == within_tolerance({workers: _mean(one[1:]) for workers, one in by_workers.items()}):
        return "after the first batch, others lie ready, up to two from each worker: leave them out too"
    return ""


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds)
