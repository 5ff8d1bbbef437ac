"""The exercises with Ray Tune: the situations, what a rank does in them, and what the check says."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from utils.checks.ray_and_tuning.bookkeeping import Books, Config, Objective, Training
from utils.checks.ray_and_tuning.curves import Landscape
from utils.checks.ray_and_tuning.random_verdicts import Search, judge_best, judge_budget, judge_range, pair_of, place
from utils.checks.verdicts import NotStarted, Wrong

SEARCH = Search(1e-6, 1.0, (16, 32, 64, 128), 12, seed=4)  # with this one Tune draws some that diverge
OTHER_SEED = Search(1e-3, 0.1, (32, 256), 3, seed=2)
SEARCHES = (SEARCH, OTHER_SEED, SEARCH)
PROCESSES = 4  # for all trials of a search; two run at a time, and one that has ended may be replaced
_TOO_HIGH = 0.85  # the mean place of 12 log-uniform samples is beyond it once in 10,000


@dataclass(frozen=True)
class Asha:
    """One call of the learner's function with a scheduler."""

    low: float
    high: float
    batch_sizes: tuple[int, ...]
    trials: int
    most_epochs: int
    seed: int

    def __str__(self) -> str:
        return f"{self.trials} trials of at most {self.most_epochs} epochs"

    @property
    def whole(self) -> int:
        """Epochs, if no trial is stopped."""
        return self.trials * self.most_epochs


ETA = 3
ASHA = Asha(1e-4, 0.2, (16, 32, 64), 18, 9, seed=3)
SMALL = Asha(1e-3, 0.1, (32,), 3, 3, seed=4)
ASHAS = (ASHA, SMALL)
LANDSCAPE = Landscape()
MOST_OF_BUDGET = 0.6


# --- what a rank does ------------------------------------------------------------------------------------------


def started(answer: Any, number_of_arguments: int) -> bool:
    """Raises NotStarted if the function does nothing yet. Found out without Ray, which takes seconds to start."""
    sys.modules.setdefault("ray", None)  # an import of it ends the function
    if sys.modules["ray"] is not None:
        sys.modules["ray"].init = _it_has_started
    try:
        answer(_it_has_started, *[1] * (number_of_arguments - 1))
    except BaseException as error:
        if isinstance(error, NotStarted) or getattr(error, "record", {}).get("kind") == "not started":
            raise
    return True


def _it_has_started(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def connected(address: str, storage: str) -> Iterator[None]:
    """In a rank: connected to a Ray that runs already, quietly."""
    from utils.launchers import ray_here

    os.environ.update(ray_here.SETTINGS)
    os.environ["HOME"] = f"{storage}/home"  # where Tune writes to if it is given no storage_path
    with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
        import ray
        from ray import tune  # noqa: F401

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def run_searches(tune_search: Any, address: str, storage: str, paths: Sequence[str]) -> dict[str, Any]:
    """In a rank: what the learner's function returns for each search, and how many trials Tune knows of."""
    results, recorded = [], []
    with connected(address, storage):
        for search, path in zip(SEARCHES, paths, strict=True):
            folder = tempfile.mkdtemp(dir=storage)
            arguments = search.low, search.high, list(search.batch_sizes), search.trials, search.seed
            results.append(tune_search(Objective(path), *arguments, folder))
            recorded.append(trials_recorded(folder))
    return {"results": results, "recorded": recorded, "pid": os.getpid()}


def run_ashas(asha_search: Any, address: str, storage: str, paths: Sequence[str]) -> dict[str, Any]:
    """In a rank: the same with a scheduler."""
    results, recorded = [], []
    with connected(address, storage):
        for case, path in zip(ASHAS, paths, strict=True):
            folder = tempfile.mkdtemp(dir=storage)
            arguments = case.low, case.high, list(case.batch_sizes), case.trials, case.most_epochs, case.seed
            results.append(asha_search(Training(path), *arguments, folder))
            recorded.append(trials_recorded(folder))
    return {"results": results, "recorded": recorded, "pid": os.getpid()}


def trials_recorded(storage: str) -> int:
    """How many trials Tune has written down in a folder of experiments."""
    states = Path(storage).glob("*/experiment_state-*.json")
    return sum(len(json.loads(state.read_text(encoding="utf-8")).get("trial_data", [])) for state in states)


# --- what the check says ---------------------------------------------------------------------------------------


def judge_searches(books: Sequence[Books], found: dict[str, Any]) -> None:
    """Trials in Ray, the budget, the samples, the best, and what the seeds make of them."""
    for search, book, result, recorded in zip(SEARCHES, books, found["results"], found["recorded"], strict=True):
        _judge_place(str(search), book, found["pid"])
        if len(book.calls) == 1 < search.trials:
            raise Wrong(
                f"One trial only: num_samples says how many there are ({search})", measured=1, expected=search.trials
            )
        judge_budget(search, book)
        judge_range(search, book.calls)
        _judge_recorded(str(search), recorded, search.trials)
        places = [place(search, call.config["lr"]) for call in book.calls]
        if search is SEARCH and sum(places) / len(places) > _TOO_HIGH:
            raise Wrong(
                "The learning rates are uniform, not log-uniform: each power of ten should get its equal share",
                measured=f"the lowest of {len(places)} is {min(call.config['lr'] for call in book.calls):.2g}",
                expected=f"some below {(search.low * search.high) ** 0.5:g}",
            )
        judge_best(search, book.calls, result)
        _judge_processes(str(search), book)
    first, other, again = ([call.config for call in book.calls] for book in books)
    if _sorted(first) != _sorted(again):
        raise Wrong(
            "Two searches with the same seed try different configurations: what draws them must get the seed "
            "(BasicVariantGenerator(random_state=…))"
        )
    places = {round(place(SEARCH, config["lr"]), 9) for config in first}
    if all(round(place(OTHER_SEED, config["lr"]), 9) in places for config in other):
        raise Wrong("Another seed makes the same draws: is the seed that is given used?")


def judge_ashas(books: Sequence[Books], found: dict[str, Any]) -> int:
    """Trials in Ray, epochs, rungs, the best. Returns the epochs of the first search."""
    for case, book, result, recorded in zip(ASHAS, books, found["results"], found["recorded"], strict=True):
        _judge_place(str(case), book, found["pid"])
        _judge_trials(case, book)
        _judge_recorded(str(case), recorded, case.trials)
        _judge_stops(case, book)
        _judge_winner(case, book, result)
        _judge_processes(str(case), book)
    epochs, most = books[0].epochs, int(MOST_OF_BUDGET * ASHA.whole)
    if epochs > most:
        raise Wrong(f"Not enough is saved ({ASHA})", measured=f"{epochs} epochs", expected=f"at most {most}")
    return epochs


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
    if processes > PROCESSES:
        raise Wrong(
            f"Each trial starts a process of its own, which takes longer than the trial: reuse_actors=True ({where})",
            measured=f"{processes} processes",
            expected=f"at most {PROCESSES}",
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
            measured=f"{len(book.trials)} trainings begun",
            expected=f"{case.trials}",
        )
    if len(book.trials) != case.trials:
        raise Wrong(f"Not as many trials as wanted ({case})", measured=len(book.trials), expected=case.trials)
    for trial in book.trials:
        lr, batch_size = trial.config["lr"], trial.config["batch_size"]
        if not case.low <= lr <= case.high or batch_size not in case.batch_sizes:
            raise Wrong(f"A configuration is outside the search space ({case})", measured=trial.config)


def _judge_stops(case: Asha, book: Books) -> None:
    totals = [trial.total for trial in book.trials]
    longest = max(totals)
    rungs = [ETA**k for k in range(10) if ETA**k < case.most_epochs] + [case.most_epochs]
    if longest > case.most_epochs:
        raise Wrong(f"A trial has too many epochs ({case})", measured=longest, expected=f"at most {case.most_epochs}")
    if longest < case.most_epochs:
        raise Wrong(
            f"No trial is trained to the end: the best must be ({case})", measured=longest, expected=case.most_epochs
        )
    if case is not ASHA:
        return
    if min(totals) == case.most_epochs:
        if all(call.epochs == case.most_epochs for call in book.calls) or len(book.calls) < 2 * case.trials:
            raise Wrong(
                "Each trial trains all its epochs at once: the scheduler can stop a trial only when it reports "
                f"({case})",
                measured=f"{book.epochs} epochs",
                expected=f"at most {int(MOST_OF_BUDGET * case.whole)}",
            )
        raise Wrong(
            "No trial is stopped early: is there a scheduler, with a grace period of one epoch, and does each trial "
            f"report after each epoch? ({case})",
            measured=f"{book.epochs} epochs",
            expected=f"at most {int(MOST_OF_BUDGET * case.whole)}",
        )
    if not set(totals) <= set(rungs):
        raise Wrong(
            f"Trials are stopped at other epochs: rungs are at 1, {ETA}, {ETA**2} … with reduction_factor={ETA} and "
            f"grace_period=1 ({case})",
            measured=sorted(set(totals)),
            expected=rungs,
        )


def _judge_winner(case: Asha, book: Books, result: Any) -> None:
    config, loss = pair_of(result)
    best = min((trial for trial in book.trials), key=lambda trial: LANDSCAPE(trial.config, case.most_epochs))
    lowest = LANDSCAPE(best.config, case.most_epochs)
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
