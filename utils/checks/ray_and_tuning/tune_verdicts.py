"""The exercises with Ray Tune: what the check says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from utils.checks.ray_and_tuning import searches, tune
from utils.checks.ray_and_tuning.bookkeeping import Books, Config
from utils.checks.ray_and_tuning.searches import Search, place, refuse
from utils.checks.ray_and_tuning.tune import Asha
from utils.checks.verdicts import Wrong

LATE = 3  # reports of others that may overtake one
_TOO_HIGH = 0.88  # the mean place of 12 log-uniform samples is beyond it once in 100,000


def judge_searches(books: Sequence[Books], found: dict[str, Any]) -> None:
    """Trials in Ray, the budget, the samples, the best, and what the seeds make of them."""
    for search, book, result, recorded in zip(tune.SEARCHES, books, found["results"], found["recorded"], strict=True):
        _judge_place(str(search), book, found["pid"])
        if len(book.calls) == 1 < search.trials:
            raise Wrong(
                f"One trial only: num_samples says how many there are ({search})", measured=1, expected=search.trials
            )
        refuse(searches.judge_budget(search, book.calls), search)
        refuse(searches.judge_range(search, book.calls), search)
        _judge_recorded(str(search), recorded, search.trials)
        _judge_samples(search, [call.config for call in book.calls])
        refuse(searches.judge_best(book.calls, result), search)
        _judge_processes(str(search), book)
    first, other, again = ([call.config for call in book.calls] for book in books)
    _judge_seeds(first, again)
    places = {round(place(tune.SEARCH, config["lr"]), 9) for config in first}
    if all(round(place(tune.SEARCHES[1], config["lr"]), 9) in places for config in other):
        raise Wrong("Another seed makes the same draws: is the seed that is given used?")


def _judge_samples(search: Search | Asha, configs: Sequence[Config]) -> None:
    rates = [config["lr"] for config in configs]
    if len(set(rates)) < len(rates):
        raise Wrong(
            f"Learning rates come again: each trial draws its own, so let param_space say what to draw from ({search})",
            measured=f"{len(set(rates))} different learning rates",
            expected=len(rates),
        )
    places = [place(search, lr) for lr in rates]
    if len(places) >= 12 and sum(places) / len(places) > _TOO_HIGH:
        raise Wrong(
            "The learning rates are uniform, not log-uniform: each power of ten should get its equal share",
            measured=f"the lowest of {len(places)} is {min(rates):.2g}",
            expected=f"some below {(search.low * search.high) ** 0.5:g}",
        )


def _judge_seeds(first: Sequence[Config], again: Sequence[Config]) -> None:
    if _sorted(first) != _sorted(again):
        raise Wrong(
            "Two searches with the same seed try different configurations: what draws them must get the seed "
            "(BasicVariantGenerator(random_state=…))"
        )


def judge_ashas(books: Sequence[Books], found: dict[str, Any]) -> int:
    """Trials in Ray, epochs, rungs, the best. Returns the epochs of the first search."""
    for case, book, result, recorded in zip(tune.ASHAS, books, found["results"], found["recorded"], strict=True):
        _judge_place(str(case), book, found["pid"])
        _judge_trials(case, book)
        _judge_recorded(str(case), recorded, case.trials)
        _judge_stops(case, book)
        _judge_rule(case, book)
        _judge_winner(case, book, result)
        _judge_processes(str(case), book)
    _judge_seeds(*([trial.config for trial in book.trials] for book in books[1:]))
    return books[0].epochs


def goes_on(loss: float, earlier: Sequence[float]) -> bool:
    """The rule of Ray's ASHA for one rung: at or below the line under which the best 1/eta of the earlier ones lie."""
    if not earlier:
        return True
    ordered, at = sorted(earlier), (len(earlier) - 1) / tune.ETA
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return loss <= low + (high - low) * (at - math.floor(at))


def _judge_rule(case: Asha, book: Books) -> None:
    """Who goes on? A report may arrive a little later than its epoch was asked for, after those of some others."""
    for rung in (tune.ETA**k for k in range(10) if tune.ETA**k < case.most_epochs):
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
                raise Wrong(
                    f"After {rung} epoch{'s' if rung > 1 else ''} a trial {what} against the rule: it goes on if it is "
                    f"at or below the line under which the best third of the earlier ones lie ({case})",
                    measured=f"{better} of {number} before it were better",
                )


def _judge_place(where: str, book: Books, pid: int) -> None:
    if book.refused:
        raise Wrong(f"{book.refused[0]} ({where})")
    inside = sum(call.pid == pid for call in book.calls)
    if inside == len(book.calls) and book.calls:
        raise Wrong(f"All trainings ran in your function's own process: let Tune run them, as trials ({where})")
    if inside:
        raise Wrong(
            f"{inside} of {len(book.calls)} trainings ran in your function's own process, outside any trial ({where})"
        )


def _judge_recorded(where: str, recorded: int, trials: int) -> None:
    if recorded != trials:
        raise Wrong(
            f"Tune's record of the trials must be in storage: RunConfig(storage_path=storage) ({where})",
            measured=f"{recorded} trials",
            expected=f"{trials}",
        )


def _judge_processes(where: str, book: Books) -> None:
    processes = len({call.pid for call in book.calls})
    if processes > tune.PROCESSES:
        raise Wrong(
            f"Each trial starts a process of its own, which takes longer than the trial: reuse_actors=True ({where})",
            measured=f"{processes} processes",
            expected=f"at most {tune.PROCESSES}",
        )


def _sorted(configs: Sequence[Config]) -> list[tuple[float, int]]:
    return sorted((config["lr"], config["batch_size"]) for config in configs)


def _judge_trials(case: Asha, book: Books) -> None:
    if not book.calls:
        raise Wrong(f"train was never called ({case})")
    different = {tuple(sorted(trial.config.items())) for trial in book.trials}
    if len(different) < len(book.trials):
        raise Wrong(
            f"Trainings start anew in each epoch: give train the checkpoint that it has returned ({case})",
            measured=f"{len(book.trials)} trainings of {len(different)} configurations begun",
            expected=f"{case.trials}",
        )
    if len(book.trials) != case.trials:
        raise Wrong(f"Not as many trials as wanted ({case})", measured=len(book.trials), expected=case.trials)
    for trial in book.trials:
        lr, batch_size = trial.config["lr"], trial.config["batch_size"]
        if not case.low * (1 - 1e-9) <= lr <= case.high * (1 + 1e-9) or batch_size not in case.batch_sizes:
            raise Wrong(f"A configuration is outside the search space ({case})", measured=trial.config)
    _judge_samples(case, [trial.config for trial in book.trials])


def _judge_stops(case: Asha, book: Books) -> None:
    totals = [trial.total for trial in book.trials]
    longest = max(totals)
    rungs = [tune.ETA**k for k in range(10) if tune.ETA**k < case.most_epochs] + [case.most_epochs]
    if longest > case.most_epochs:
        raise Wrong(f"A trial has too many epochs ({case})", measured=longest, expected=f"at most {case.most_epochs}")
    if longest < case.most_epochs:
        raise Wrong(
            f"No trial is trained to the end: the best must be ({case})", measured=longest, expected=case.most_epochs
        )
    if case is not tune.ASHA:
        return
    if min(totals) == case.most_epochs:
        if all(call.epochs == case.most_epochs for call in book.calls) or len(book.calls) < 2 * case.trials:
            raise Wrong(
                "Each trial trains all its epochs at once: the scheduler can stop a trial only when it reports "
                f"({case})",
                measured=f"{book.epochs} epochs",
            )
        raise Wrong(
            "No trial is stopped early: is there a scheduler, with a grace period of one epoch, and does each trial "
            f"report after each epoch? ({case})",
            measured=f"{book.epochs} epochs",
        )
    if not set(totals) <= set(rungs):
        raise Wrong(
            f"Trials are stopped at other epochs: rungs are at 1, {tune.ETA}, {tune.ETA**2} … with "
            f"reduction_factor={tune.ETA} and grace_period=1 ({case})",
            measured=sorted(set(totals)),
            expected=rungs,
        )


def _judge_winner(case: Asha, book: Books, result: Any) -> None:
    if words := searches.not_a_pair(result):
        raise Wrong(f"{words[0].upper()}{words[1:]} ({case})", measured=result)
    config, loss = result
    best = min((trial for trial in book.trials), key=lambda trial: tune.LANDSCAPE(trial.config, case.most_epochs))
    lowest = tune.LANDSCAPE(best.config, case.most_epochs)
    if best.total < case.most_epochs:
        raise Wrong(
            f"The best trial is stopped, and worse ones go on: which mode does the scheduler get? ({case})",
            measured=f"the best is stopped after epoch {best.total}",
            expected=f"{case.most_epochs} epochs",
        )
    if config != best.config:
        raise Wrong(f"The configuration with the lowest loss wins ({case})", measured=loss, expected=lowest)
    if loss != lowest:
        raise Wrong(f"The loss is not that of the winner's last epoch ({case})", measured=loss, expected=lowest)
