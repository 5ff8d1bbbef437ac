"""Checks of ``tune_search`` and ``asha_search``: what Ray's trials have noted, and what Tune has written down of them.

Searches with Ray take seconds, so nothing is played beside them: each mistake is told by what is seen of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.engine import Reference, refuse
from checks.engine.inside import Outcome
from checks.labs.ray_and_tuning import notes, rays, searches
from checks.labs.ray_and_tuning.notes import EPOCHS, Notes, Training, curve
from checks.labs.ray_and_tuning.samples import judge_samples
from checks.labs.ray_and_tuning.searches import Call, Search, place

TUNE = Reference("ray_and_tuning", "tune_search")
ASHA = Reference("ray_and_tuning", "asha_search")
# The first two are the same, and small: a trial that fails is soon told, and one of so many batch sizes is hardly drawn
# twice by chance. The third has trials enough to tell half of the range, or of the batch sizes, from all.
_FEW = Search(1e-3, 0.1, tuple(range(8, 808, 8)), 1, seed=8)
SEARCHES = (_FEW, _FEW, Search(1e-6, 1.0, (24, 80), 25, seed=7))
_SHORT = replace(_FEW, most_epochs=3)
STOPPED = (_SHORT, _SHORT, Search(1e-5, 0.2, (16, 40, 64, 104), 18, seed=5, most_epochs=9))
PROCESSES = 4  # for all trials of a search; two run at a time, and one that has ended may be replaced
ETA = 3


def search(tune_search: Any) -> None:
    """In a fresh process, random search: the budget, the samples, the best, and what the seeds make of them."""
    _judge(tune_search, SEARCHES, _judge_search)


def stop(asha_search: Any) -> None:
    """In a fresh process, the same with a scheduler: how far each trial is trained."""
    _judge(asha_search, STOPPED, _judge_stopped)


def _judge(answer: Any, cases: Sequence[Search], judge: Callable[[Search, list[Call], Any, Path], None]) -> None:
    drawn: list[set[tuple[float, int]]] = []
    with rays.running(answer, notes) as storage:
        for one in cases:
            result, calls, folder = _searched(answer, one, storage)
            judge(one, calls, result, folder)
            processes = len({call.pid for call in calls})
            words = "each trial starts a process of its own, which takes longer than the trial: reuse_actors=True"
            refuse(processes > PROCESSES, words, measured=f"{processes} processes", expected=f"at most {PROCESSES}")
            drawn.append({(call.config["lr"], call.config["batch_size"]) for call in calls})
            words = "two searches with the same seed try different configurations: what draws them must get the seed "
            refuse(len(drawn) == 2 and drawn[0] != drawn[1], f"{words}(BasicVariantGenerator(random_state=…))")
    few, many = ({round(place(one, lr), 9) for lr, _ in each} for one, each in zip(cases[1:], drawn[1:], strict=True))
    refuse(few <= many, "another seed makes the same draws: is the seed that is given used?")


def _judge_search(one: Search, calls: list[Call], result: Any, folder: Path) -> None:
    words = "one trial only: num_samples says how many there are"
    refuse(len(calls) == 1 < one.trials, words, measured=1, expected=one.trials)
    searches.judge_budget(one, calls)
    _judge_trials(one, calls, folder)
    searches.judge_best(calls, result)


def _judge_stopped(one: Search, calls: list[Call], result: Any, folder: Path) -> None:
    refuse(not calls, "train was never called")
    trials = [*{call.trial: call for call in calls}.values()]  # of each its last call
    _judge_number(one, calls, trials)
    _judge_trials(one, trials, folder)
    _judge_stops(one, calls, [trial.total for trial in trials], folder)
    _judge_winner(one, trials, result)


def _searched(answer: Callable[..., Any], one: Search, storage: str) -> tuple[Any, list[Call], Path]:
    """What a search returns, which trainings it has made, and its folder."""
    folder = tempfile.mkdtemp(dir=storage)
    noted, most = Notes(f"{folder}.notes"), one.most_epochs
    # (In a large search the first trial diverges: it is one of two that begin first.)
    train = Training(noted, most or EPOCHS, diverging=0 if most or one.trials == 1 else 2)
    asked: list[Any] = [train, most] if most else [train.whole]
    result = failure = None
    try:
        result = answer(asked[0], one.low, one.high, [*one.batch_sizes], one.trials, *asked[1:], one.seed, folder)
    except Outcome as outcome:
        failure = outcome  # its cause may be in the notes
    calls = [Call(**{name: note[name] for name in Call.__annotations__}) for note in noted.read()]
    own = sum(call.pid == os.getpid() for call in calls)
    words = "all trainings ran in your function's own process: let Tune run them, as trials"
    refuse(own and own == len(calls), words)
    refuse(own, f"{own} of {len(calls)} trainings ran in your function's own process, outside any trial")
    error = rays.first_error(folder)
    refuse(error, f"a trial has raised {error}")
    searches.judge_range(one, calls)
    if failure:
        raise failure from failure.__cause__
    rays.still_running(getattr(answer, "name", "your function"))
    return result, calls, Path(folder)


def _judge_trials(one: Search, trials: Sequence[Call], folder: Path) -> None:
    words = "Tune's record of the trials must be in storage: let Tune run them, RunConfig(storage_path=storage)"
    refuse(not list(folder.rglob("experiment_state-*.json")), words)
    judge_samples(one, trials)


def _judge_number(one: Search, calls: Sequence[Call], trials: Sequence[Call]) -> None:
    words = "not as many trials as wanted"
    if len({str(trial.config) for trial in trials}) < len(trials):
        words = "trainings start anew in each epoch: give train the checkpoint that it has returned"
        if any(call.total > call.epochs for call in calls):
            words = "trials begin anew, without the checkpoint that they had: does the scheduler pause them? "
            words += "ASHAScheduler stops a trial, or lets it go on"
    refuse(len(trials) != one.trials, words, measured=f"{len(trials)} trainings begun", expected=one.trials)


def _judge_stops(one: Search, calls: Sequence[Call], totals: Sequence[int], folder: Path) -> None:
    most, rungs = one.most_epochs, sorted({*(ETA**k for k in range(3)), one.most_epochs})
    refuse(max(totals) > most, "a trial has too many epochs", measured=max(totals), expected=f"at most {most}")
    words = "no trial is trained to the end: is max_t most_epochs, and is there one report after each epoch?"
    refuse(max(totals) < most, words, measured=max(totals), expected=most)
    words = "each trial trains all its epochs at once: the scheduler can stop a trial only when it reports"
    refuse(len(calls) == one.trials and min(totals) == most, words)
    words = "no trial is stopped early: is there a scheduler, with a grace period of one epoch, and does each trial "
    refuse(min(totals) == most and one.trials > 1, f"{words}report after each epoch?", measured=f"{sum(totals)} epochs")
    words = f"trials are stopped at other epochs: rungs are at 1, {ETA}, {ETA**2} … with reduction_factor={ETA} and "
    refuse(not {*totals} <= {*rungs}, f"{words}grace_period=1", measured=sorted({*totals}), expected=rungs)
    words = "a trial trains one epoch at a time and reports after each, so that it can be stopped there"
    steps = max(call.epochs for call in calls)
    refuse(steps > 1, words, measured=f"{steps} epochs in one call", expected=1)
    reports = sum(file.read_text(encoding="utf-8").count("\n") for file in folder.glob("*/*/result.json"))
    refuse(reports < sum(totals), words, measured=f"{reports} reports of {sum(totals)} epochs")


def _judge_winner(one: Search, trials: Sequence[Call], result: Any) -> None:
    refuse(words := searches.not_a_pair(result), words, measured=str(result)[:100])
    config, loss = result
    best = min(trials, key=lambda trial: curve(trial.config, one.most_epochs))
    words = "the best trial is stopped, and worse ones go on: which mode does the scheduler get?"
    figures = {"measured": f"after epoch {best.total}", "expected": f"{one.most_epochs} epochs"}
    refuse(best.total < one.most_epochs, words, **figures)
    figures = {"measured": f"{loss:.8g}", "expected": f"{best.loss:.8g}"}
    refuse(config != best.config, "the configuration with the lowest loss wins", **figures)
    refuse(loss != best.loss, "the loss is not that of the winner's last epoch", **figures)
