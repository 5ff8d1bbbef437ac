"""The exercises with Ray Tune: what the check says of the books that it has kept of each search."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checks.contracts import Broken, Case, refuse
from checks.ray_and_tuning import searches, tune
from checks.ray_and_tuning.bookkeeping import Books, Config
from checks.ray_and_tuning.samples import judge_samples
from checks.ray_and_tuning.searches import Search, place
from checks.ray_and_tuning.tune import Asha
from checks.verdicts import Wrong

LATE = 3  # reports of others that may overtake one


@contextlib.contextmanager
def causes_first(cases: Sequence[Search | Asha], books: Sequence[Books]) -> Iterator[None]:
    """What an office has refused, or its books show, may be the cause of what comes out of the learner's function."""
    try:
        yield
    except Wrong:
        for case, book in zip(cases, books, strict=True):
            parts = [[Broken("value:refused", words)] for words in book.refused[:1]]
            samples = judge_samples(case, book.trials) if len(book.trials) == case.trials else ()
            refuse(_case(case), _first([*parts, searches.judge_range(case, book.trials), samples]))
        raise


def judge_searches(books: Sequence[Books], found: dict[str, Any]) -> None:
    """Trials in Ray, the budget, the samples, the best, and what the seeds make of them."""
    for number, (search, book) in enumerate(zip(tune.SEARCHES, books, strict=True)):
        refuse(_case(search), _first(_search_parts(search, book, _of(found, number))))
    drawn = [[call.config for call in book.calls] for book in books]
    refuse(_case(tune.SEARCHES[-1]), _judge_seeds(tune.SEARCHES, drawn))


def judge_ashas(books: Sequence[Books], found: dict[str, Any]) -> None:
    """Trials in Ray, epochs, rungs, the best."""
    for number, (case, book) in enumerate(zip(tune.ASHAS, books, strict=True)):
        refuse(_case(case), _first(_asha_parts(case, book, _of(found, number))))
    drawn = [[trial.config for trial in book.trials] for book in books]
    refuse(_case(tune.ASHAS[-1]), _judge_seeds(tune.ASHAS, drawn))


@dataclass(frozen=True)
class Found:
    """What is known of one search beside its book: see ``tune.run_searches``."""

    result: Any
    recorded: int
    error: str
    reports: int
    pid: int


def _of(found: dict[str, Any], number: int) -> Found:
    parts = ("results", "recorded", "errors", "reports")
    return Found(*(found[part][number] for part in parts), found["pid"])


def _first(parts: Iterable[Iterable[Broken]]) -> list[Broken]:
    """Of the first part that is broken; those after it rely on it."""
    return next((broken for part in parts if (broken := list(part))), [])


def _case(search: Search | Asha) -> Case:
    shown = {name.replace("_", " "): value for name, value in asdict(search).items()}
    return shown | {"ranks": 1, "batch sizes": str(search.batch_sizes), "drawn": tune.SEED_OF_CASES}


def _search_parts(search: Search, book: Books, found: Found) -> Iterator[Iterable[Broken]]:
    yield _judge_place(book, found.pid)
    yield _judge_error(book, search.trials, found.error)
    if len(book.calls) == 1 < search.trials:
        yield [Broken("value:one", "one trial only: num_samples says how many there are", 1, search.trials)]
    yield searches.judge_budget(search, book.calls)
    yield searches.judge_range(search, book.calls)
    yield _judge_recorded(found.recorded, search.trials)
    yield judge_samples(search, book.calls)
    yield searches.judge_best(book.calls, found.result)
    yield _judge_processes(book, found.error)


def _judge_error(book: Books, trials: int, error: str) -> Iterator[Broken]:
    if error and len(book.trials) != trials:
        yield Broken("value:error", f"a trial has raised {error}")


def _judge_seeds(cases: Sequence[Search | Asha], drawn: Sequence[Sequence[Config]]) -> Iterator[Broken]:
    """The third search is the same as one of the others, whose seeds differ; the second has few trials."""
    twin = cases.index(cases[2])
    if _sorted(drawn[twin]) != _sorted(drawn[2]):
        words = "two searches with the same seed try different configurations: what draws them must get the seed "
        yield Broken("value:seeds", f"{words}(BasicVariantGenerator(random_state=…))")
    many, few = (
        {round(place(case, one["lr"]), 9) for one in configs}
        for case, configs in zip(cases[:2], drawn[:2], strict=True)
    )
    if few <= many:
        yield Broken("value:own seed", "another seed makes the same draws: is the seed that is given used?")


def _asha_parts(case: Asha, book: Books, found: Found) -> Iterator[Iterable[Broken]]:
    yield _judge_place(book, found.pid)
    yield _judge_error(book, case.trials, found.error)
    yield _judge_trials(case, book)
    yield _judge_recorded(found.recorded, case.trials)
    yield _judge_stops(case, book)
    yield _judge_steps(book, found.reports)
    yield _judge_rule(case, book)
    yield _judge_winner(case, book, found.result)
    yield _judge_processes(book, found.error)


def goes_on(loss: float, earlier: Sequence[float]) -> bool:
    """The rule of Ray's ASHA for one rung: at or below the line under which the best 1/eta of the earlier ones lie."""
    if not earlier:
        return True
    ordered, at = sorted(earlier), (len(earlier) - 1) / tune.ETA
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return loss <= low + (high - low) * (at - math.floor(at))


def _judge_rule(case: Asha, book: Books) -> Iterator[Broken]:
    """Who goes on? A report may arrive a little later than its epoch was asked for, after those of some others."""
    for rung in _rungs(case)[:-1]:
        came = [(call.trial, call.loss) for call in book.calls if call.total == rung]
        losses = [loss for _, loss in came]
        for number, (trial, loss) in enumerate(came):
            earlier, later = losses[:number], losses[number + 1 : number + 1 + LATE]
            possible = [earlier + later[:more] for more in range(len(later) + 1)]
            possible += [earlier[:one] + earlier[one + 1 :] for one in range(max(0, number - LATE), number)]
            went_on = book.trials[trial].total > rung
            if went_on not in [goes_on(loss, others) for others in possible]:
                better = sum(one < loss for one in earlier)
                what = "goes on" if went_on else "is stopped"
                words = f"after {rung} epoch{'s' * (rung > 1)} a trial {what} against the "
                words += (
                    "rule: it goes on if it is at or below the line under which the best third of the earlier ones lie"
                )
                yield Broken("value:rule", words, f"{better} of {number} before it were better")
                return


def _rungs(case: Asha) -> list[int]:
    return [tune.ETA**k for k in range(10) if tune.ETA**k < case.most_epochs] + [case.most_epochs]


def _judge_place(book: Books, pid: int) -> Iterator[Broken]:
    if book.refused:
        yield Broken("value:refused", book.refused[0])
    inside = sum(call.pid == pid for call in book.calls)
    if inside:
        words = f"{inside} of {len(book.calls)} trainings ran in your function's own process, outside any trial"
        if inside == len(book.calls):
            words = "all trainings ran in your function's own process: let Tune run them, as trials"
        yield Broken("value:place", words)


def _judge_recorded(recorded: int, trials: int) -> Iterator[Broken]:
    if recorded != trials:
        words = "Tune's record of the trials must be in storage: let Tune run them, RunConfig(storage_path=storage)"
        yield Broken("value:record", words, f"{recorded} trials", f"{trials}")


def _judge_processes(book: Books, error: str) -> Iterator[Broken]:
    processes = len({call.pid for call in book.calls})
    if processes > tune.PROCESSES:
        words = "each trial starts a process of its own, which takes longer than the trial: reuse_actors=True"
        if error:
            words = f"after an error Tune starts a new process, and a trial has raised {error}"
        yield Broken("value:processes", words, f"{processes} processes", f"at most {tune.PROCESSES}")


def _sorted(configs: Sequence[Config]) -> list[tuple[float, int]]:
    return sorted((config["lr"], config["batch_size"]) for config in configs)


def _judge_trials(case: Asha, book: Books) -> Iterator[Broken]:
    begun, different = len(book.trials), len({tuple(sorted(trial.config.items())) for trial in book.trials})
    if not book.calls:
        yield Broken("value:calls", "train was never called")
    elif different < begun != case.trials:
        words = "trainings start anew in each epoch: give train the checkpoint that it has returned"
        if any(call.total > call.epochs for call in book.calls):
            words = "trials begin anew, without the checkpoint that they had: does the scheduler pause them? "
            words += "ASHAScheduler stops a trial, or lets it go on"
        measured = f"{begun} trainings of {different} configurations begun"
        yield Broken("value:anew", words, measured, f"{case.trials}")
    elif begun != case.trials:
        yield Broken("value:trials", "not as many trials as wanted", begun, case.trials)
    elif broken := list(searches.judge_range(case, book.trials)):
        yield from broken
    else:
        yield from judge_samples(case, book.trials)


def _judge_stops(case: Asha, book: Books) -> Iterator[Broken]:
    totals, most = [trial.total for trial in book.trials], case.most_epochs
    if max(totals) > most:
        yield Broken("value:epochs", "a trial has too many epochs", max(totals), f"at most {most}")
    elif max(totals) < most:
        words = "no trial is trained to the end: is max_t most_epochs, and is there one report after each epoch?"
        yield Broken("value:none whole", words, max(totals), most)
    elif case is not tune.ASHA:
        return
    elif min(totals) == most:
        words = (
            "no trial is stopped early: is there a scheduler, with a grace period of one epoch, and does each trial "
        )
        words += "report after each epoch?"
        if all(call.epochs == most for call in book.calls) or len(book.calls) < 2 * case.trials:
            words = "each trial trains all its epochs at once: the scheduler can stop a trial only when it reports"
        yield Broken("value:all whole", words, f"{book.epochs} epochs")
    elif not set(totals) <= set(_rungs(case)):
        words = f"trials are stopped at other epochs: rungs are at 1, {tune.ETA}, {tune.ETA**2} … with "
        words += f"reduction_factor={tune.ETA} and grace_period=1"
        yield Broken("value:rungs", words, str(sorted(set(totals))), str(_rungs(case)))


def _judge_steps(book: Books, reports: int) -> Iterator[Broken]:
    words = "a trial trains one epoch at a time and reports after each, so that it can be stopped there"
    if (most := max(call.epochs for call in book.calls)) > 1:
        yield Broken("value:steps", words, f"{most} epochs in one call", 1)
    elif reports < book.epochs:
        yield Broken("value:reports", words, f"{reports} reports of {book.epochs} epochs")


def _judge_winner(case: Asha, book: Books, result: Any) -> Iterator[Broken]:
    if words := searches.not_a_pair(result):
        yield Broken("value:pair", words, str(result)[:100])
        return
    config, loss = result
    best = min(book.trials, key=lambda trial: tune.LANDSCAPE(trial.config, case.most_epochs))
    lowest = tune.LANDSCAPE(best.config, case.most_epochs)
    figures = f"{loss:.8g}", f"{lowest:.8g}"
    if best.total < case.most_epochs:
        words = "the best trial is stopped, and worse ones go on: which mode does the scheduler get?"
        yield Broken("value:mode", words, f"the best is stopped after epoch {best.total}", f"{case.most_epochs} epochs")
    elif config != best.config:
        yield Broken("value:best", "the configuration with the lowest loss wins", *figures)
    elif loss != lowest:
        yield Broken("value:loss", "the loss is not that of the winner's last epoch", *figures)
