"""Exercise 7: ``choose_workers(measure, cores, ranks, worker_bytes, free_bytes)`` on simulated machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.feeding_the_ranks.simulated_loader import AHEAD, MACHINES, DoesNotFit, Machine
from checks.plain import number
from checks.verdicts import Wrong

TOLERANCE = 0.05
MOST_BATCHES = 2_000
Log = list[tuple[int, list[float]]]


def draw(rng: random.Random) -> list[Case]:
    """Machines on which the answer is clear. Some again, all times longer or shorter, on nodes of other size."""
    machines = list(MACHINES.items())
    machines += [(name, _like(machine, rng)) for name, machine in rng.sample(machines, 2)]
    ratios = rng.uniform(1.025, 1.03), rng.uniform(1.07, 1.075)
    for ratio, workers in zip(ratios, rng.sample((1, 2, 4), 2), strict=True):
        machines.append((f"steady times, {workers} or {workers + 1} workers", _like(_nearly(workers, ratio), rng)))
    machines.append(("a process that loads as fast as many workers", _like(_alone(rng.uniform(1.025, 1.03)), rng)))
    return [
        {"ranks": 1, "the machine with": name, "facts": [asdict(_with_rest(machine))], "seed": rng.getrandbits(30)}
        for name, machine in machines
    ]


def _with_rest(machine: Machine) -> Machine:
    """With cores and memory left over, not quite enough for one worker more on each rank."""
    share = machine.ranks * machine.worker_bytes
    room = machine.free_bytes // share * share + 3 * share // 4
    return replace(machine, cores=machine.cores + machine.ranks - 1, free_bytes=room, log=[])


def _nearly(workers: int, ratio: float) -> Machine:
    """With so many workers a batch takes ``ratio`` times as long as with more: 1.03 will do, 1.07 will not."""
    step = Machine(load_s=0.0, step_s=0.008, jitter=0.01)
    return replace(step, load_s=ratio * workers * (step.step_s + step.ship_s))


def _alone(ratio: float) -> Machine:
    """Without workers a batch takes ``ratio`` times as long as with three; with one or two, far longer."""
    machine = _nearly(3, 1.02)
    return replace(machine, alone_s=ratio * (machine.step_s + machine.ship_s) - machine.step_s)


def _like(machine: Machine, rng: random.Random) -> Machine:
    """Another one with the same answer."""
    pace, nodes = rng.uniform(0.3, 3), rng.choice((1, 2, 3))
    times = {name: getattr(machine, name) * pace for name in ("load_s", "step_s", "disk_s", "ship_s", "start_s")}
    alone = None if machine.alone_s is None else machine.alone_s * pace
    size = {"cores": machine.cores * nodes, "ranks": machine.ranks * nodes, "free_bytes": machine.free_bytes * nodes}
    return replace(machine, **times, **size, alone_s=alone, seed=rng.getrandbits(20), log=[])


def scene(case: Case, watch: Any, facts: Facts) -> None:
    (given,) = case["facts"]
    facts["log"] = []
    measure = _measured(given, facts["log"])
    size = {name: given[name] for name in ("cores", "ranks", "worker_bytes", "free_bytes")}
    chosen = watch.call("choose_workers", measure=measure, **size)
    whole = number(chosen, whole=True)
    facts["chosen"] = f"a {type(chosen).__name__}" if whole is None else whole


def _measured(given: dict[str, Any], log: Log) -> Callable[[int, int], list[float]]:
    """``measure``. The machine is inside a generator, where nobody sees it who does not look at frames."""
    machine = _machine(given, log)
    next(machine)

    def measure(workers: int, batches: int) -> list[float]:
        found = machine.send((workers, batches))
        if isinstance(found, Wrong):
            raise found
        return found

    return measure


def _machine(given: dict[str, Any], log: Log) -> Generator[Any, Any, None]:
    machine, found = Machine(**given), None
    while True:
        asked = yield found
        try:
            found = machine.measure(*asked)
            log.append((asked[0], list(found)))
        except DoesNotFit as error:
            found = Wrong(error.sentence, measured=error.measured, expected=error.expected)
        except TypeError as error:
            found = Wrong(f"{error}")


def within_tolerance(seconds: dict[int, float]) -> int:
    """The smallest number of workers whose batches take at most 5 % longer than the fastest ones."""
    best = min(seconds.values())
    return min(workers for workers, one in seconds.items() if one <= best * (1 + TOLERANCE))


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be."""
    facts, machine = world[0], Machine(**case["facts"][0])
    batches = sum(len(seconds) for _, seconds in facts["log"])
    if batches > MOST_BATCHES:
        words = "measuring takes longer than it saves"
        yield Broken("value:batches", words, f"{batches:,} batches", f"at most {MOST_BATCHES:,}")
    elif "chosen" in facts:
        yield from _choice(machine, facts["chosen"], facts["log"])


def _choice(machine: Machine, chosen: Any, log: Log) -> Iterator[Broken]:
    if not isinstance(chosen, int) or chosen < 0:
        yield Broken("value:kind", "choose_workers returns a whole number of workers", chosen, "0 or more")
        return
    try:
        machine.refuse(chosen)
    except DoesNotFit as error:
        yield Broken("value:fits", error.sentence, error.measured, error.expected)
        return
    true = {workers: machine.true_seconds(workers) for workers in range(machine.most + 1)}
    right = within_tolerance(true)
    if chosen == right:
        return
    if not log:
        why = "nothing is measured: no rule of thumb fits all machines"
    elif right not in {workers for workers, _ in log}:
        why = f"{right} workers are never tried"
    else:
        why = _mistake(log, chosen)
    if not why and true[chosen] <= true[right] * (1 + TOLERANCE):
        why = "fewer workers are within 5 % of the fastest, and take less memory"
    yield Broken(
        "value:choice",
        why or "this is not the smallest number within 5 % of the fastest",
        f"{chosen} workers, {1000 * true[chosen]:.1f} ms a batch (simulated)",
        f"{right} workers, {1000 * true[right]:.1f} ms",
    )


def _mistake(log: Log, chosen: int) -> str:
    """Which way to read the measured seconds leads to this choice."""
    if max(len(seconds) for _, seconds in log) <= 2 * AHEAD:
        return "a few batches tell nothing: the first one waits for the workers to start, the next ones lay ready"
    by_workers: dict[int, list[float]] = dict(log)  # the last measurement of each
    settled = {workers: seconds[2 * AHEAD * workers :] or seconds for workers, seconds in by_workers.items()}
    if chosen == min(settled, key=lambda workers: _mean(settled[workers])):
        return "this is the fastest one measured, but fewer workers are within 5 % of it: the rest is noise"
    if chosen == within_tolerance({workers: sorted(one)[len(one) // 2] for workers, one in settled.items()}):
        return (
            "a middle value such as the median is fooled: batches come in bursts, one from each worker and then a long "
            "wait. What counts is the mean over whole rounds"
        )
    if chosen == within_tolerance({workers: _mean(one) for workers, one in by_workers.items()}):
        return "the start of the workers is counted, and it happens once in an epoch: leave the first batches out"
    if chosen == within_tolerance({workers: _mean(one[1:] or one) for workers, one in by_workers.items()}):
        return "after the first batch, others lie ready, up to two from each worker: leave them out too"
    return ""


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    batches = [sum(len(seconds) for _, seconds in world[0]["log"]) for _, world in played]
    return {
        "machines (simulated)": len(played),
        "workers chosen": ", ".join(str(world[0]["chosen"]) for _, world in played),
        "batches measured": f"{max(batches):,} at most",
    }


CONTRACT = Contract(
    name="feeding_the_ranks.workers",
    rules={"choose_workers": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("value:*", "{}"),),
    figures=figures,
)
