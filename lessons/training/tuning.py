"""One small training that is tuned in many ways: digits, a network of one hidden layer, SGD (or AdamW).

Whoever tunes needs many trainings, so here many networks learn side by side: ``Training`` holds one for each learning
rate. They share the batch size and the images of each batch, and nothing else; each is what it would be alone.

An objective that all searches share: the loss on 360 validation images. A network that guesses has ln 10 = 2.30.
A worse one, or one whose numbers have overflowed, counts as that, so that no search has to deal with infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN = 32
VALIDATION = 360
"""Images held back from the 1,440 of ``utils.training.data.digits`` to judge trials by; 1,080 are left to train on."""
IMAGES = 1080
GUESSING = math.log(10)
EPOCHS = 27
"""Of a whole training. It is 3³, so that successive halving by 3 has its rungs at 1, 3, 9 and 27."""
RATES = tuple(10 ** (power / 8) for power in range(-16, 9))
"""Learning rates of the table: 0.01 to 10, eight in each decade."""
BATCHES = (32, 64, 128, 256)


class _Split(NamedTuple):
    images: Tensor
    labels: Tensor
    held_back: dict[str, tuple[Tensor, Tensor]]


@cache
def _split() -> _Split:
    from utils.training.data import digits

    every = digits()
    pixels = every.train_images.flatten(1)
    return _Split(
        pixels[:IMAGES],
        every.train_labels[:IMAGES],
        {
            "validation": (pixels[IMAGES:], every.train_labels[IMAGES:]),
            "test": (every.test_images.flatten(1), every.test_labels),
        },
    )


class Training:
    """Networks that learn digits side by side, an epoch at a time.

    Args:
        rates: a learning rate for each network, or one number.
        batch: images in a step.
        decay: weight decay, for each network or one number.
        seed: of the first weights and of the order of the images. The same for all networks.
        images: train on the first so many of the 1,080.
        optimizer: "SGD" or "AdamW", as in ``torch.optim``, without momentum or with its usual ones.
    """

    def __init__(
        self,
        rates: float | Sequence[float],
        batch: int,
        decay: float | Sequence[float] = 0.0,
        seed: int = 0,
        images: int = IMAGES,
        optimizer: str = "SGD",
    ) -> None:
        import torch

        torch.set_num_threads(1)  # the networks are tiny: more threads would only get into each other's way
        self.batch, self.seed, self.images, self.epochs = int(min(batch, images)), seed, images, 0
        rate, decays = torch.broadcast_tensors(torch.as_tensor(rates).reshape(-1), torch.as_tensor(decay).reshape(-1))
        self._rate, self._decay = rate.reshape(-1, 1, 1).float(), decays.reshape(-1, 1, 1).float()
        generator = torch.Generator().manual_seed(seed)
        first = (torch.randn(64, HIDDEN, generator=generator) / 8, torch.zeros(1, HIDDEN))
        second = (torch.randn(HIDDEN, 10, generator=generator) / HIDDEN**0.5, torch.zeros(1, 10))
        self.weights = [one.repeat(len(rate), 1, 1).requires_grad_() for one in (*first, *second)]
        self.optimizer, self.steps = optimizer, 0
        adam = optimizer == "AdamW"
        self.moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in self.weights] if adam else []

    def epoch(self) -> list[float]:
        """Train for one epoch (the images that do not fill a batch are left out) and give the validation losses."""
        import torch

        split = _split()
        order = torch.Generator().manual_seed(1000 * self.seed + self.epochs)
        for rows in torch.randperm(self.images, generator=order).split(self.batch):
            if len(rows) == self.batch:
                self._step(split.images[rows], split.labels[rows])
        self.epochs += 1
        return self.losses()

    def losses(self, part: str = "validation") -> list[float]:
        """Of each network on "validation" or "test" images; never above ln 10, that of guessing."""
        import torch
        from torch.nn.functional import cross_entropy

        images, labels = _split().held_back[part]
        with torch.no_grad():
            scores = self._scores(images)
            each = cross_entropy(scores.flatten(0, 1), labels.repeat(len(scores)), reduction="none")
        found = each.reshape(len(scores), -1).mean(-1).tolist()
        return [min(loss, GUESSING) if math.isfinite(loss) else GUESSING for loss in found]

    def state_dict(self) -> dict[str, Any]:
        """All that another ``Training`` of the same settings needs to go on exactly here."""
        weights = [weight.detach().clone() for weight in self.weights]
        moments = [(mean.clone(), square.clone()) for mean, square in self.moments]
        return {"epochs": self.epochs, "steps": self.steps, "weights": weights, "moments": moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epochs, self.steps = state["epochs"], state["steps"]
        self.weights = [weight.clone().requires_grad_() for weight in state["weights"]]
        self.moments = [(mean.clone(), square.clone()) for mean, square in state["moments"]]

    def _scores(self, images: Tensor) -> Tensor:
        """``[networks, images, 10]``."""
        import torch

        first, bias_1, second, bias_2 = self.weights
        return torch.tanh(images @ first + bias_1) @ second + bias_2

    def _step(self, images: Tensor, labels: Tensor) -> None:
        import torch
        from torch.nn.functional import cross_entropy

        scores = self._scores(images).flatten(0, 1)
        wanted = labels.repeat(len(self._rate))
        loss = cross_entropy(scores, wanted, reduction="sum") / len(labels)  # the sum of the networks' mean losses
        directions = torch.autograd.grad(loss, self.weights)
        self.steps += 1
        with torch.no_grad():
            if self.moments:
                directions = [
                    self._adam(*one, gradient) for one, gradient in zip(self.moments, directions, strict=True)
                ]
            for weight, direction in zip(self.weights, directions, strict=True):
                weight -= self._rate * (direction + self._decay * weight)

    def _adam(self, mean: Tensor, square: Tensor, gradient: Tensor) -> Tensor:
        """The gradient's running mean, in parts of its usual size; both begin at 0, which is corrected."""
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.001)
        return mean / (1 - 0.9**self.steps) / ((square / (1 - 0.999**self.steps)).sqrt() + 1e-8)


class Table:
    """Learning curves that were measured once, to be looked up as often as a comparison of searches needs.

    Attributes:
        curves: seed → value of the second parameter → learning rate → validation loss after each epoch.
        second: its name, "batch" or "decay".
    """

    def __init__(self, curves: dict[int, dict[float, dict[float, list[float]]]], second: str = "batch") -> None:
        self.curves, self.second = curves, second

    def curve(self, config: Mapping[str, float], seed: int) -> list[float]:
        """The curve at this learning rate: measured, or in between two measured ones (both axes are logarithmic)."""
        row, rate = self.curves[seed][config[self.second]], config["lr"]
        low = max((one for one in row if one <= rate), default=min(row))
        high = min((one for one in row if one >= rate), default=max(row))
        share = math.log(rate / low) / math.log(high / low) if low < rate < high else float(rate >= high)
        return [a ** (1 - share) * b**share for a, b in zip(row[low], row[high], strict=True)]

    def last(self, seed: int) -> list[list[float]]:
        """Losses after the last epoch: a row for each value of the second parameter, a column for each rate."""
        return [[curve[-1] for curve in row.values()] for row in self.curves[seed].values()]

    def best(self, seed: int) -> float:
        """The lowest loss after any epoch of any setting: what a search can find at most."""
        return min(min(curve) for row in self.curves[seed].values() for curve in row.values())


def measure(
    seeds: Sequence[int] = (0,),
    rates: Sequence[float] = RATES,
    batches: Sequence[int] = BATCHES,
    epochs: int = EPOCHS,
) -> Table:
    """Train with every learning rate and every batch size, and keep all curves."""
    return Table(
        {
            seed: {batch: _curves(Training(rates, batch, seed=seed), rates, epochs) for batch in batches}
            for seed in seeds
        }
    )


def measure_decay(decays: Sequence[float], seeds: Sequence[int] = (0,), batch: int = 64, epochs: int = EPOCHS) -> Table:
    """Train with every learning rate and every weight decay, with one batch size."""
    return Table(
        {
            seed: {decay: _curves(Training(RATES, batch, decay, seed), RATES, epochs) for decay in decays}
            for seed in seeds
        },
        second="decay",
    )


def _curves(training: Training, rates: Sequence[float], epochs: int) -> dict[float, list[float]]:
    by_epoch = [training.epoch() for _ in range(epochs)]
    return {rate: list(curve) for rate, *curve in zip(rates, *by_epoch, strict=True)}
