"""Ray Tune's searchers and schedulers, run in this process on learning curves that were measured once.

A trial in Ray costs a good part of a second, however small the training, and to compare searches one needs thousands
of trials. ``replay`` hands Ray's own objects (``OptunaSearch``, ``ASHAScheduler``, ``HyperBandForBOHB``, …) the same
calls as Ray's controller does, one trial at a time, and answers each with the next loss of a ``tuning.Table``. A
trial that was paused goes on where it was, as it would from a checkpoint.

Ray is not imported here: whoever brings its objects has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

from lessons.training.tuning import EPOCHS, Table

Config = dict[str, Any]
_PENDING_POINTS = 200  # trials that Ray makes ahead for grids and random points: HyperBand needs whole brackets


@dataclass(eq=False)
class Trial:
    """What schedulers know of a trial, with the names that Ray's ``Trial`` has."""

    trial_id: str
    config: Config
    status: str = "PENDING"  # RUNNING, PAUSED, TERMINATED
    losses: list[float] = field(default_factory=list)
    is_saving = False
    last_result: dict[str, Any] = field(default_factory=dict)


@dataclass
class Search:
    """What a search has done.

    Attributes:
        trials: that ran, in the order in which they were made; each has a loss for each epoch it ran.
        best: the lowest loss seen after 1, 2, 3, … epochs of all trials together.
    """

    trials: list[Trial]
    best: list[float]

    @property
    def epochs(self) -> int:
        return sum(len(trial.losses) for trial in self.trials)


class Points:
    """A searcher that suggests what it was given, in that order: a grid, or any list."""

    def __init__(self, configs: Iterable[Config]) -> None:
        self._configs = iter(configs)

    def suggest(self, trial_id: str) -> Config | None:
        return next(self._configs, None)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Nothing is learned from results."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Nothing is learned from results."""


def grid(values: Mapping[str, Sequence[Any]]) -> list[Config]:
    """Every combination, as ``tune.grid_search`` makes them."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def replay(table: Table, seed: int, searcher: Any, scheduler: Any, budget: int) -> Search:
    """Let a search spend its budget on measured curves.

    Args:
        table: the curves.
        seed: which of the table's trainings.
        searcher: with ``suggest``, ``on_trial_result`` and ``on_trial_complete``. It may run out of suggestions.
        scheduler: one of Ray's, with metric "loss" and mode "min"; None: every trial runs to its end.
        budget: epochs of all trials together. The trial that spends the last one stops there.
    """
    return _Controller(table, seed, searcher, scheduler).run(budget)


class _Controller:
    """Calls searcher and scheduler as ``TuneController`` of Ray 2.60 does; they call back the methods without _."""

    def __init__(self, table: Table, seed: int, searcher: Any, scheduler: Any) -> None:
        self.search_alg = SimpleNamespace(searcher=searcher)
        self._searcher, self._scheduler = searcher, scheduler
        self._table, self._seed = table, seed
        self._trials: list[Trial] = []
        self._ahead = _PENDING_POINTS if isinstance(searcher, Points) else 1  # one that learns is asked late

    def get_trials(self) -> list[Trial]:
        return self._trials

    def stop_trial(self, trial: Trial) -> None:
        if trial.status in ("PENDING", "PAUSED"):
            self._scheduler.on_trial_remove(self, trial)
            self._searcher.on_trial_complete(trial.trial_id)
        elif trial.status == "RUNNING":
            if self._scheduler:
                self._scheduler.on_trial_complete(self, trial, trial.last_result)
            self._searcher.on_trial_complete(trial.trial_id, result=trial.last_result)
        trial.status = "TERMINATED"

    def run(self, budget: int) -> Search:
        best: list[float] = []
        while len(best) < budget and (trial := self._next()):
            trial.status = "RUNNING"
            curve = self._table.curve(trial.config, self._seed)
            while trial.status == "RUNNING" and len(best) < budget:
                trial.losses.append(curve[len(trial.losses)])
                best.append(min([*best[-1:], trial.losses[-1]]))
                self._report(trial)
        return Search([trial for trial in self._trials if trial.losses], best)

    def _next(self) -> Trial | None:
        """The trial that runs next; None when there is none and the searcher has no more."""
        pending = [trial for trial in self._trials if trial.status == "PENDING"]
        while len(pending) < self._ahead:
            name = f"{len(self._trials):05}"
            if (config := self._searcher.suggest(name)) is None:
                break
            pending.append(Trial(name, dict(config)))
            self._trials.append(pending[-1])
            if self._scheduler:
                self._scheduler.on_trial_add(self, pending[-1])
        return self._scheduler.choose_trial_to_run(self) if self._scheduler else next(iter(pending), None)

    def _report(self, trial: Trial) -> None:
        result = {"training_iteration": len(trial.losses), "loss": trial.losses[-1]}
        decision = self._scheduler.on_trial_result(self, trial, result) if self._scheduler else "CONTINUE"
        trial.last_result = result
        if decision != "STOP":
            self._searcher.on_trial_result(trial.trial_id, result)
        if decision == "PAUSE":
            trial.status = "PAUSED"
        elif decision == "STOP" or len(trial.losses) == EPOCHS:
            self.stop_trial(trial)
