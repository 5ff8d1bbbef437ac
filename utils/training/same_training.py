"""One small training, the same for every framework: data, start and notes, with numpy alone.

Each program in scripts/frameworks/ trains the same network (64 pixels, 64 hidden units with ReLU, 10 classes) from the
same weights on the same batches, and writes down the loss of every step. So their curves can be laid over each other.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from numpy import ndarray

from utils.training.data import INK, TRAIN, digit_images

PIXELS, HIDDEN, CLASSES = 64, 64, 10
BATCH = 144
"""Images in the batch of one step, of all workers together; it divides evenly among 1, 2, 3, 4 or 6 workers."""
STEPS = 40
LEARNING_RATE = 0.5
"""Plain SGD; for the mean of the loss over the whole batch."""


def weights(seed: int = 0) -> list[ndarray]:
    """The start: ``[64, 64]``, ``[64]``, ``[64, 10]``, ``[10]``, float32, for ``images @ weight + bias``.

    torch's ``nn.Linear`` keeps the transpose of such a weight.
    """
    generator = numpy.random.default_rng(seed)
    shapes = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    return [
        (generator.standard_normal(shape) / 8 if len(shape) == 2 else numpy.zeros(shape)).astype(numpy.float32)
        for shape in shapes
    ]


class Batches:
    """The training's batches, each worker's part of them, and the test images.

    Args:
        worker: this worker's number, from 0.
        workers: how many share each batch.
    """

    def __init__(self, worker: int = 0, workers: int = 1) -> None:
        if BATCH % workers:
            raise ValueError(f"a batch of {BATCH} images cannot be shared evenly by {workers} workers.")
        pixels, labels = digit_images()
        order = numpy.random.default_rng(0).permutation(len(labels))
        images = (pixels.reshape(-1, PIXELS) / INK).astype(numpy.float32)[order]
        self.images, self.labels = images[:TRAIN], labels[order][:TRAIN]
        self.test_images, self.test_labels = images[TRAIN:], labels[order][TRAIN:]
        self.worker, self.workers = worker, workers

    def __getitem__(self, step: int) -> tuple[ndarray, ndarray]:
        """This worker's images ``[144 / workers, 64]`` and labels of a step, counted from 0."""
        first = step * BATCH % TRAIN
        mine = slice(first + self.worker, first + BATCH, self.workers)
        return self.images[mine], self.labels[mine]


def write(path: Path, losses: list[float], final: list[ndarray], **facts: object) -> None:
    """Keep what a program found: losses by step, final weights (as ``weights`` gives them), and facts about the run."""
    kept = {"losses": [float(loss) for loss in losses], "weights": [array.tolist() for array in final], **facts}
    half = path.with_suffix(".part")
    half.write_text(json.dumps(kept), encoding="utf-8")
    half.replace(path)
