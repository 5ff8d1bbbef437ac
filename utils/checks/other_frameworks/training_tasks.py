"""The trainings of this lab: what a learner's function finds in each worker, and what one process would get.

numpy alone at the top: torch and TensorFlow are imported in the workers that need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy import ndarray

from utils.training.same_training import BATCH, Batches, weights


class Task:
    """What is the same under Horovod and TensorFlow: steps to do, losses to log, weights to keep.

    Args:
        folder: the check's; a file in it shows that this worker goes on.
        name: of this worker.
        seed: of the weights that this worker starts with.
    """

    steps = 8

    def __init__(self, folder: str | Path, name: str, seed: int) -> None:
        self._beat, self._seed = Path(folder, f"beat.{name}"), seed
        self.reads: list[list[int]] = []
        self.logged: dict[int, list[float]] = {}
        self.saved: list[list[ndarray]] = []

    def log(self, step: int, loss: Any) -> None:
        """Keep the loss of a step, counted from 0."""
        self.logged.setdefault(int(step), []).append(float(loss))

    def facts(self) -> dict[str, Any]:
        saved = [[array.ravel().tolist() for array in arrays] for arrays in self.saved]
        return {"reads": self.reads, "logged": list(self.logged.items()), "saved": saved}

    def _start(self) -> list[ndarray]:
        """Weights and biases that are different in each process."""
        return [array + 0.1 * self._seed * (array.ndim == 1) for array in map(numpy.float32, weights(self._seed))]

    def _note(self, read: list[int]) -> None:
        self.reads.append(read)
        self._beat.touch()


class HorovodTask(Task):
    """This lab's training for torch: each worker takes 48 samples a step."""

    batch, lr = 48, 0.1

    def __init__(self, folder: str | Path, name: str, seed: int) -> None:
        super().__init__(folder, name, seed)
        self._data, self._model = Batches(), None

    def model(self) -> Any:
        """A network with weights that are different in each process."""
        import torch

        self._model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        for parameter, array in zip(self._model.parameters(), self._start(), strict=True):
            parameter.data.copy_(torch.tensor(array.T))
        return self._model

    def read(self, numbers: Iterable[int]) -> tuple[Any, Any]:
        """Images ``[n, 64]`` and labels ``[n]`` of the samples with these numbers."""
        import torch

        chosen = [int(number) for number in numbers]
        self._note(chosen)
        return torch.tensor(self._data.images[chosen]), torch.tensor(self._data.labels[chosen])

    def save(self, model: Any) -> None:
        """Write the model into the file that is kept."""
        self.saved.append(arrays_of(model))

    def facts(self) -> dict[str, Any]:
        final = None if self._model is None else [array.ravel().tolist() for array in arrays_of(self._model)]
        return super().facts() | {"weights": final}


class TensorFlowTask(Task):
    """This lab's training for TensorFlow: all replicas together take 144 samples a step."""

    batch, lr = BATCH, 0.5

    def weights(self) -> list[ndarray]:
        """``[64, 64]``, ``[64]``, ``[64, 10]``, ``[10]``, different in each process."""
        return self._start()

    def part(self, step: int, index: int, count: int) -> tuple[Any, Any]:
        """Images ``[144 / count, 64]`` and labels of a step, for replica number ``index`` of ``count``."""
        import tensorflow as tf

        self._note([int(step), int(index), int(count)])
        images, labels = Batches(int(index), int(count))[int(step)]
        return tf.constant(images), tf.constant(labels)

    def save(self, variables: Sequence[Any]) -> None:
        """Write the variables into the file that is kept."""
        self.saved.append([numpy.array(variable.numpy()) for variable in variables])


def arrays_of(model: Any) -> list[ndarray]:
    """A torch model's parameters as ``utils.training.same_training.weights`` gives them."""
    return [parameter.detach().numpy().T.copy() for parameter in model.parameters()]


def alone(
    batches: Iterable[tuple[ndarray, ndarray]], lr: float, scale: int | None = None
) -> tuple[list[float], list[ndarray]]:
    """What one process gets: gradients by hand, in numpy's float64.

    Args:
        batches: images and labels, step by step.
        lr: learning rate.
        scale: what the sum of a batch's losses is divided by; None: the number of its samples.

    Returns:
        The loss of each step, and the final weights.
    """
    weight, bias, weight_2, bias_2 = state = [array.astype(numpy.float64) for array in weights()]
    losses = []
    for images, labels in batches:
        samples, rows = scale or len(labels), range(len(labels))
        hidden = numpy.maximum(images @ weight + bias, 0)
        logits = hidden @ weight_2 + bias_2
        share = numpy.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        losses.append(float(-numpy.log(share[rows, labels]).sum() / samples))
        share[rows, labels] -= 1
        back = share @ weight_2.T * (hidden > 0)
        for array, gradient in zip(
            state, (images.T @ back, back.sum(axis=0), hidden.T @ share, share.sum(axis=0)), strict=True
        ):
            array -= lr * gradient / samples
    return losses, state
