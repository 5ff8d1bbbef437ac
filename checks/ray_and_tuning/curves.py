"""The known function. A learning curve in closed form, for each learning rate and batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checks.ray_and_tuning.bookkeeping import Config

START = 2.3  # the loss before the first epoch: that of ten classes, guessed


@dataclass(frozen=True)
class Landscape:
    """``landscape(config, epochs)`` is a loss.

    Args:
        best_lr: the learning rate with the lowest loss.
        best_batch_size: the batch size with the lowest loss.
        floor: the lowest loss that a long training reaches.
        pace: how fast the loss falls at the best learning rate, per epoch.
        crossing: by how much faster it falls with ten times the learning rate; 0: the curves never cross.
        diverges_at: from this learning rate on the loss is nan, from the second epoch on; from ten times it at once.
        largest_batch: larger ones crash with a ``MemoryError``.
        digits: losses are rounded to so many, so that some are equal.
        ripple: so much higher is each loss after an odd number of epochs, of which all rungs are.
    """

    best_lr: float = 0.02
    best_batch_size: int = 32
    floor: float = 0.1
    pace: float = 0.25
    crossing: float = 0.0
    diverges_at: float = math.inf
    largest_batch: float = math.inf
    digits: int = 12
    ripple: float = 0.0

    def __call__(self, config: Config, epochs: int) -> float:
        if config["batch_size"] > self.largest_batch:
            raise MemoryError
        lr = config["lr"]
        if not lr > 0 or lr >= 10 * self.diverges_at or (lr >= self.diverges_at and epochs > 1):
            return math.nan
        decades = math.log10(lr / self.best_lr)
        final = self.floor + 0.1 * decades**2 + 0.02 * abs(math.log2(config["batch_size"] / self.best_batch_size))
        final = min(final, START)
        pace = self.pace * math.exp(self.crossing * decades)
        return round(final + (START - final) * math.exp(-pace * epochs) + self.ripple * (epochs % 2), self.digits)

    def lowest(self, epochs: int) -> float:
        """The loss of the best configuration (without ``crossing``)."""
        return self({"lr": self.best_lr, "batch_size": self.best_batch_size}, epochs)
