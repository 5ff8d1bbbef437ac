"""The trainings of this lab: what a learner's function finds in each worker, and what one process would get.

numpy alone at the top: torch and TensorFlow are imported in the workers that need them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy import ndarray

from utils.training.same_training import BATCH, Batches, weights

Case = dict[str, Any]


HOROVOD: Case = {"ranks": 3, "steps": 7, "batch": 32, "lr": 0.1, "seed": 20}
# With two workers, and with several replicas in one process.
_BOTH = {"batch": BATCH, "steps": 6, "lr": 0.4, "seed": 22}
TENSORFLOW: list[Case] = [_BOTH | {"ranks": 2}, _BOTH | {"ranks": 3}]


def start_of(case: Case, worker: int) -> list[ndarray]:
    """Weights and biases that are different in each process."""
    drawn = map(numpy.float32, weights(case["seed"] + worker))
    return [array + numpy.float32(0.1 * (worker + 1) * (array.ndim == 1)) for array in drawn]


def shifted(case: Case, step: int) -> int:
    """Which of TensorFlow's batches a step takes."""
    return step + case["seed"] % 7


class Task:
    """What is the same under Horovod and TensorFlow: steps to do, losses to log, weights to keep.

    Args:
        folder: the check's; a file in it shows that this worker goes on.
        name: of this worker.
        case: one of those above.
        number: of this worker, whose weights are its own.
    """

    def __init__(self, folder: str | Path, name: str, case: Case, number: int) -> None:
        self._beat, self._case, self._number = Path(folder, f"beat.{name}"), case, number
        self.steps, self.batch, self.lr, self._pid = case["steps"], case["batch"], case["lr"], os.getpid()
        self._reads: list[list[int]] = []
        self._logged: dict[int, list[float]] = {}
        self._saved: list[list[ndarray]] = []

    def log(self, step: int, loss: Any) -> None:
        """Keep the loss of a step, counted from 0."""
        self._logged.setdefault(int(step), []).append(float(loss))

    def facts(self) -> dict[str, Any]:
        saved = [[array.ravel().tolist() for array in arrays] for arrays in self._saved]
        return {"reads": self._reads, "logged": list(self._logged.items()), "saved": saved}

    def _note(self, read: list[int]) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("samples are read in the worker's own process, and not in one that a DataLoader makes")
        self._reads.append(read)
        self._beat.touch()


class HorovodTask(Task):
    """This lab's training for torch: each worker takes ``batch`` samples a step."""

    def __init__(self, folder: str | Path, name: str, case: Case, number: int) -> None:
        super().__init__(folder, name, case, number)
        self._data, self._model = Batches(), None
        self._begun: list[ndarray] = []

    def model(self) -> Any:
        """A network with weights that are different in each process."""
        import torch

        self._model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        for parameter, array in zip(self._model.parameters(), start_of(self._case, self._number), strict=True):
            parameter.data.copy_(torch.tensor(array.T))
        return self._model

    def read(self, numbers: Iterable[int]) -> tuple[Any, Any]:
        """Images ``[n, 64]`` and labels ``[n]`` of the samples with these numbers."""
        import torch

        chosen = [int(number) for number in numbers]
        if self._model is not None and not self._begun:
            self._begun = arrays_of(self._model)
        self._note(chosen)
        return torch.tensor(self._data.images[chosen]), torch.tensor(self._data.labels[chosen])

    def save(self, model: Any) -> None:
        """Write the model into the file that is kept."""
        self._saved.append(arrays_of(model))

    def facts(self) -> dict[str, Any]:
        final = [] if self._model is None else arrays_of(self._model)
        told = {"weights": final, "begun": self._begun or final}
        return super().facts() | {key: [array.ravel().tolist() for array in arrays] for key, arrays in told.items()}


class TensorFlowTask(Task):
    """This lab's training for TensorFlow: all replicas together take 144 samples a step."""

    def weights(self) -> list[ndarray]:
        """``[64, 64]``, ``[64]``, ``[64, 10]``, ``[10]``, different in each process."""
        return start_of(self._case, self._number)

    def part(self, step: int, index: int, count: int) -> tuple[Any, Any]:
        """Images ``[144 / count, 64]`` and labels of a step, for replica number ``index`` of ``count``."""
        import tensorflow as tf

        self._note([int(step), int(index), int(count)])
        images, labels = Batches(int(index), int(count))[shifted(self._case, int(step))]
        return tf.constant(images), tf.constant(labels)

    def save(self, variables: Sequence[Any]) -> None:
        """Write the variables into the file that is kept."""
        self._saved.append([numpy.array(variable.numpy()) for variable in variables])


def arrays_of(model: Any) -> list[ndarray]:
    """A torch model's parameters as ``utils.training.same_training.weights`` gives them."""
    return [parameter.detach().numpy().T.copy() for parameter in model.parameters()]


def alone(
    batches: Iterable[tuple[ndarray, ndarray]],
    lr: float,
    scale: int | None = None,
    start: Sequence[ndarray] = (),
) -> tuple[list[float], list[ndarray]]:
    """What one process gets: gradients by hand, in numpy's float64.

    Args:
        batches: images and labels, step by step.
        lr: learning rate.
        scale: what the sum of a batch's losses is divided by; None: the number of its samples.
        start: the weights before the first step.

    Returns:
        The loss of each step, and the final weights.
    """
    weight, bias, weight_2, bias_2 = state = [array.astype(numpy.float64) for array in start or weights()]
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
        gradients = images.T @ back, back.sum(axis=0), hidden.T @ share, share.sum(axis=0)
        for array, gradient in zip(state, gradients, strict=True):
            array -= lr * gradient / samples
    return losses, state
