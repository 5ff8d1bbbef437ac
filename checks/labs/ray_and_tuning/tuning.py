"""Checks of ``tune_search`` and ``asha_search``: what Ray's trials have noted, and what Tune has written down of them.

Searches with Ray take seconds, so nothing is played beside them: each mistake is told by what is seen of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.inside import Outcome
from checks.engine.processes import run
from checks.labs.ray_and_tuning import notes, rays
from checks.labs.ray_and_tuning.notes import Training, curve
from checks.labs.ray_and_tuning.random_searching import Search, judge_best, judge_draws, place

TUNE, ASHA = Reference("ray_and_tuning", "tune_search"), Reference("ray_and_tuning", "asha_search")
# The first two are the same, and small: a trial that fails is soon told, and one of so many batch sizes is hardly drawn
# twice by chance. The third has trials enough to tell log-uniform from uniform, and some batch sizes from all.
_FEW = Search(1e-3, 0.1, tuple(range(8, 808, 8)), 1, seed=8)
SEARCHES = (_FEW, _FEW, Search(1e-6, 1.0, (24, 48, 80), 25, seed=7))
_SHORT = replace(_FEW, most_epochs=3)
STOPPED = (_SHORT, _SHORT, Search(1e-5, 0.2, (16, 40, 64, 104), 18, seed=5, most_epochs=9))
PROCESSES = 4  # for all trials of a search; two run at a time, and one that has ended may be replaced
RUNGS = (1, 3, 9)


@exercise(TUNE, title="Random search with Ray Tune", difficulty=2, minutes=25, timeout=800, needs=("ray",))
def random_with_tune(tune_search: Any) -> dict[str, Any]:
    """Judge ``tune_search(objective, low, high, batch_sizes, trials, seed, storage)`` in three searches."""
    run(search, tune_search, SEARCHES, timeout=400)
    return {"searches": 3, "trials": f"{sum(one.trials for one in SEARCHES)}, all of them in Ray"}


@exercise(ASHA, title="Stop early with ASHA", difficulty=3, minutes=30, timeout=800, needs=("ray",))
def early_stopping(asha_search: Any) -> dict[str, Any]:
    """Judge ``asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage)`` in three searches."""
    run(search, asha_search, STOPPED, timeout=400)  # (how many epochs depends on which one reports first)
    return {"searches": 3, "trials": f"{sum(one.trials for one in STOPPED)}, stopped at their rungs"}


def search(answer: Any, cases: Sequence[Search]) -> None:
    """In a fresh process, some searches: their trials, samples and best, and what the seeds make of them."""
    drawn: list[set[tuple[float, int]]] = []
    with rays.running(answer, notes) as storage:
        for one in cases:
            folder = tempfile.mkdtemp(dir=storage)
            result, calls = _searched(answer, one, folder)
            refuse(not calls, "nothing was ever trained: call it in the trial")
            trials = [*{call.trial: call for call in calls}.values()]  # of each its last call
            if one.most_epochs:
                _judge_stopped(one, calls, trials, Path(folder))
            judge_draws(one, [trial.config for trial in trials])
            judge_best(trials, result)
            processes = len({call.pid for call in calls})
            fault = "each trial starts a process of its own, which takes longer than the trial: reuse_actors=True"
            refuse(processes > PROCESSES, fault, measured=f"{processes} processes", expected=f"at most {PROCESSES}")
            drawn.append({(round(place(one, call.config["lr"]), 9), call.config["batch_size"]) for call in calls})
            fault = "two searches with the same seed try different configurations: what draws them must get the seed "
            refuse(len(drawn) == 2 and drawn[0] != drawn[1], f"{fault}(BasicVariantGenerator(random_state=…))")
    few, many = ({lr for lr, _ in each} for each in drawn[1:])
    refuse(few <= many, "another seed makes the same draws: is the seed that is given used?")


def _searched(answer: Callable[..., Any], one: Search, folder: str) -> tuple[Any, list[Any]]:
    """What a search returns, and which trainings it has made."""
    path, most = f"{folder}.notes", one.most_epochs
    # (In a large search the first trial diverges: it is one of two that begin first.)
    train = Training(path, diverging=0 if most or one.trials == 1 else 2)
    asked: list[Any] = [train, most] if most else [train.whole]
    result = failure = None
    try:
        result = answer(asked[0], one.low, one.high, [*one.batch_sizes], one.trials, *asked[1:], one.seed, folder)
    except Outcome as outcome:
        failure = outcome  # its cause may be in the notes
    calls = [SimpleNamespace(**note) for note in notes.read(path)]
    own = sum(call.pid == os.getpid() for call in calls)
    fault = "trainings run in your function's own process, outside any trial: let Tune run them"
    refuse(own, fault, measured=f"{own} of {len(calls)}")
    errors = [file.read_text(encoding="utf-8").strip().splitlines()[-1] for file in Path(folder).rglob("error.txt")]
    refuse(errors, f"a trial has raised {''.join(errors[:1])[:200]}")
    if failure:
        raise failure from failure.__cause__
    rays.still_running()
    fault = "Tune's record of the trials must be in storage: let Tune run them, RunConfig(storage_path=storage)"
    refuse(not any(Path(folder).rglob("experiment_state-*.json")), fault)
    return result, calls


def _judge_stopped(one: Search, calls: Sequence[Any], trials: Sequence[Any], folder: Path) -> None:
    """How far each trial is trained."""
    fault = "trainings begin anew, without the checkpoint that they had: give train what it has returned "
    fault += "(ASHAScheduler stops a trial or lets it go on, other schedulers pause it)"
    refuse(len({str(trial.config) for trial in trials}) < len(trials), fault)
    totals, most, steps = [trial.total for trial in trials], one.most_epochs, max(call.epochs for call in calls)
    fault = "the longest trial has other epochs than are asked for: is max_t most_epochs, and does the trial end there?"
    refuse(max(totals) != most, fault, measured=max(totals), expected=most)
    fault = "a trial trains one epoch at a time and reports after each, so that it can be stopped there"
    reports = sum(file.read_text(encoding="utf-8").count("\n") for file in folder.glob("*/*/result.json"))
    figures = {"measured": f"{steps} epochs in one call, {reports} reports", "expected": f"1, {sum(totals)} reports"}
    refuse(steps > 1 or reports < sum(totals), fault, **figures)
    fault = "no trial is stopped early: is there a scheduler, and does each trial report after each epoch?"
    refuse(min(totals) == most and one.trials > 1, fault, measured=f"{sum(totals)} epochs")
    fault = "trials are stopped at other epochs than those of the rungs: reduction_factor=3 and grace_period=1"
    refuse(not {*totals} <= {*RUNGS}, fault, measured=sorted({*totals}), expected=RUNGS)
    best = min(trials, key=lambda trial: curve(trial.config, most))
    fault = "the best trial is stopped, and worse ones go on: which mode does the scheduler get?"
    refuse(best.total < most, fault, measured=f"after epoch {best.total}", expected=f"{most} epochs")
