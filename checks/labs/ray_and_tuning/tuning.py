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
from checks.labs.ray_and_tuning.searches import Call, Search, place

TUNE = Reference("ray_and_tuning", "tune_search")
ASHA = Reference("ray_and_tuning", "asha_search")
# The first two are the same, and small: a trial that fails is soon told, and one of so many batch sizes is hardly drawn
# twice by chance. The third has trials enough to tell log-uniform from uniform, and some batch sizes from all.
_FEW = Search(1e-3, 0.1, tuple(range(8, 808, 8)), 1, seed=8)
SEARCHES = (_FEW, _FEW, Search(1e-6, 1.0, (24, 80), 25, seed=7))
_SHORT = replace(_FEW, most_epochs=3)
STOPPED = (_SHORT, _SHORT, Search(1e-5, 0.2, (16, 40, 64, 104), 18, seed=5, most_epochs=9))
PROCESSES = 4  # for all trials of a search; two run at a time, and one that has ended may be replaced
RUNGS = (1, 3, 9)


def search(answer: Any, cases: Sequence[Search]) -> None:
    """In a fresh process, some searches: their trials, samples and best, and what the seeds make of them."""
    drawn: list[set[tuple[float, int]]] = []
    with rays.running(answer, notes) as storage:
        for one in cases:
            result, calls, folder = _searched(answer, one, storage)
            if one.most_epochs:
                _judge_stopped(one, calls, result, folder)
            else:
                refuse(len(calls) == 1 < one.trials, "one trial only: num_samples says how many there are")
                searches.judge_budget(one, calls)
                searches.judge_samples(one, calls)
                searches.judge_best(calls, result)
            processes = len({call.pid for call in calls})
            words = "each trial starts a process of its own, which takes longer than the trial: reuse_actors=True"
            refuse(processes > PROCESSES, words, measured=f"{processes} processes", expected=f"at most {PROCESSES}")
            drawn.append({(round(place(one, call.config["lr"]), 9), call.config["batch_size"]) for call in calls})
            words = "two searches with the same seed try different configurations: what draws them must get the seed "
            refuse(len(drawn) == 2 and drawn[0] != drawn[1], f"{words}(BasicVariantGenerator(random_state=…))")
    few, many = ({lr for lr, _ in each} for each in drawn[1:])
    refuse(few <= many, "another seed makes the same draws: is the seed that is given used?")


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
    words = "trainings run in your function's own process, outside any trial: let Tune run them"
    refuse(own, words, measured=f"{own} of {len(calls)}")
    error = rays.first_error(folder)
    refuse(error, f"a trial has raised {error}")
    searches.judge_range(one, calls)
    if failure:
        raise failure from failure.__cause__
    rays.still_running()
    refuse(not calls, "nothing was ever trained: call it in the trial")
    words = "Tune's record of the trials must be in storage: let Tune run them, RunConfig(storage_path=storage)"
    refuse(not list(Path(folder).rglob("experiment_state-*.json")), words)
    return result, calls, Path(folder)


def _judge_stopped(one: Search, calls: Sequence[Call], result: Any, folder: Path) -> None:
    """How far each trial is trained, and whether the best one is found."""
    trials = [*{call.trial: call for call in calls}.values()]  # of each its last call
    totals, most = [trial.total for trial in trials], one.most_epochs
    words = "not as many trials as wanted"
    if len({str(trial.config) for trial in trials}) < len(trials):
        words = "trainings begin anew, without the checkpoint that they had: give train what it has returned "
        words += "(ASHAScheduler stops a trial or lets it go on, other schedulers pause it)"
    refuse(len(trials) != one.trials, words, measured=f"{len(trials)} trainings begun", expected=one.trials)
    searches.judge_samples(one, trials)
    refuse(max(totals) > most, "a trial has too many epochs", measured=max(totals), expected=f"at most {most}")
    words = "no trial is trained to the end: is max_t most_epochs, and is there one report after each epoch?"
    refuse(max(totals) < most, words, measured=max(totals), expected=most)
    steps, rungs = max(call.epochs for call in calls), sorted({*RUNGS, most})
    words = "a trial trains one epoch at a time and reports after each, so that it can be stopped there"
    reports = sum(file.read_text(encoding="utf-8").count("\n") for file in folder.glob("*/*/result.json"))
    figures = {"measured": f"{steps} epochs in one call, {reports} reports", "expected": f"1, {sum(totals)} reports"}
    refuse(steps > 1 or reports < sum(totals), words, **figures)
    words = "no trial is stopped early: is there a scheduler, and does each trial report after each epoch?"
    refuse(min(totals) == most and one.trials > 1, words, measured=f"{sum(totals)} epochs")
    words = "trials are stopped at other epochs than those of the rungs: reduction_factor=3 and grace_period=1"
    refuse(not {*totals} <= {*rungs}, words, measured=sorted({*totals}), expected=rungs)
    config, loss = searches.pair(result)
    best = min(trials, key=lambda trial: curve(trial.config, most))
    words = "the best trial is stopped, and worse ones go on: which mode does the scheduler get?"
    refuse(best.total < most, words, measured=f"after epoch {best.total}", expected=f"{most} epochs")
    figures = {"measured": f"{loss:.8g}", "expected": f"{best.loss:.8g}"}
    refuse(config != best.config, "the configuration with the lowest loss wins", **figures)
    refuse(loss != best.loss, "the loss is not that of the winner's last epoch", **figures)
