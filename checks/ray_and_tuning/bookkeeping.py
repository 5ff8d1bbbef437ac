"""Who counts the budget. The function that the searches look into lives in the process of the check.

A learner's code, and the trials that it starts with Ray, run in other processes. They hold a ``Training`` only, which
asks here. So each call is in the books, in whichever process it was made, and what a call costs cannot be changed
from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checks.ray_and_tuning.office import Office, Refused, ask

Config = dict[str, Any]
Curve = Callable[[Config, int], float]
"""From a configuration and epochs to a loss: the function to search. It may raise ``MemoryError``."""

OUT_OF_MEMORY = "out of memory"
_SECONDS = 30  # to wait for an answer
_MOST_EPOCHS = 1_000_000  # of one trial
ENDLESS = 5  # so many times the epochs that are wanted, and the search is ended


@dataclass
class Call:
    """One call: ``epochs`` more epochs for one trial, which has then had ``total``; None: the trial has crashed."""

    trial: int
    config: Config
    epochs: int
    total: int
    loss: float | None
    pid: int


@dataclass
class Trial:
    """One training from its first epoch on."""

    config: Config
    total: int = 0
    crashed: bool = False


@dataclass
class Books(Office):
    """The books of one search, an office that a ``Training`` asks.

    Args:
        curve: the function to search.
        epochs_wanted: of the whole search; far more of them are refused.
    """

    curve: Curve
    epochs_wanted: int = 1_000
    calls: list[Call] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    @property
    def epochs(self) -> int:
        """All epochs that were trained."""
        return sum(call.epochs for call in self.calls)

    def answer(self, asked: Any, pid: int) -> dict[str, Any]:
        with self._lock:
            return self._train(asked["config"], asked["epochs"], asked["checkpoint"], pid)

    def _train(self, config: Any, epochs: Any, checkpoint: Any, pid: int) -> dict[str, Any]:
        _require(config, epochs)
        if len(self.calls) >= ENDLESS * self.epochs_wanted:
            raise Refused(f"{len(self.calls):,} trainings where {self.epochs_wanted} are enough: does each trial end?")
        if checkpoint is None:
            self.trials.append(Trial(config))
            number = len(self.trials) - 1
        else:
            number, total = _checkpoint(checkpoint)
            if number >= len(self.trials):
                raise Refused("the checkpoint is none that train has returned")
            if self.trials[number].config != config:
                raise Refused(f"{config} was given the checkpoint of another configuration: trials begin without")
            if self.trials[number].total != total:
                raise Refused("an old checkpoint was used: epochs after it were trained twice")
        trial = self.trials[number]
        if trial.total + epochs > _MOST_EPOCHS:
            raise Refused(f"a trial has more than {_MOST_EPOCHS:,} epochs: does the search end?")
        trial.total += epochs
        try:
            loss = self.curve(config, trial.total)
        except MemoryError:
            trial.crashed = True
            self.calls.append(Call(number, config, epochs, trial.total, None, pid))
            return {"crashed": OUT_OF_MEMORY}
        self.calls.append(Call(number, config, epochs, trial.total, loss, pid))
        return {"loss": loss, "checkpoint": f"trial {number} after {trial.total} epochs"}


def _require(config: Any, epochs: Any) -> None:
    if not isinstance(config, dict) or set(config) != {"lr", "batch_size"}:
        raise Refused(f"a configuration is a dict with lr and batch_size, not {str(config)[:80]}")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in config.values()):
        raise Refused(f"lr and batch_size are numbers, not {str(config)[:80]}")
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise Refused(f"epochs is a whole number of at least 1, not {str(epochs)[:20]}")


def _checkpoint(text: Any) -> tuple[int, int]:
    try:
        _, number, _, total, _ = str(text).split()
        return int(number), int(total)
    except ValueError:
        raise Refused("the checkpoint is none that train has returned") from None


@dataclass(frozen=True)
class Training:
    """``train(config, epochs, checkpoint=None)`` for learners: gives a loss and a checkpoint. Can be pickled."""

    path: str = field(repr=False)

    def __call__(self, config: Config, epochs: int = 1, checkpoint: str | None = None) -> tuple[float, str]:
        """Train a configuration so many epochs more.

        Args:
            config: ``{"lr": …, "batch_size": …}``.
            epochs: how many.
            checkpoint: where to go on; None starts anew.

        Returns:
            The loss after these epochs, nan if the training has diverged; and a checkpoint to go on from.

        Raises:
            RuntimeError: out of memory.
        """
        asked = {"config": _plain(config), "epochs": _number(epochs), "checkpoint": checkpoint}
        answer = ask(self.path, asked, _SECONDS)
        return answer["loss"], answer["checkpoint"]


@dataclass(frozen=True)
class Objective:
    """``objective(config)`` for learners: a whole training, and its loss. Can be pickled."""

    path: str = field(repr=False)

    def __call__(self, config: Config) -> float:
        """The loss of a whole training, nan if it has diverged."""
        return Training(self.path)(config)[0]


def _plain(config: Any) -> Any:
    return {name: _number(value) for name, value in config.items()} if isinstance(config, dict) else config


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value  # numpy's and torch's numbers
