"""Real data that needs no download: 1,797 handwritten digits, 8×8 pixels each, that come with scikit-learn.

``digit_images`` gives them as numpy arrays, ``digits`` as torch tensors in a training and a test part. Both read the
file that lies inside the installed scikit-learn, without importing scikit-learn: that import costs about a
second, and every rank would pay it. Nor is torch imported before ``digits`` is called.

Source of the data: Alpaydin, Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
1998. scikit-learn ships its test set: 13 people wrote these digits.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 10
TRAIN = 1440
"""Images to train on; 357 are left for the test. 1,440 divides evenly among 1 to 6, 8, 9, 10, 12 or 16 ranks."""
INK = 16.0
"""The darkest pixel in the file."""


class Digits(NamedTuple):
    """Handwritten digits as tensors on the CPU.

    Attributes:
        train_images: ``[1440, 1, 8, 8]``, float32 from 0 (paper) to 1 (ink).
        train_labels: ``[1440]``, int64 from 0 to 9.
        test_images: ``[357, 1, 8, 8]``, float32.
        test_labels: ``[357]``, int64.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digit_images() -> tuple[numpy.ndarray, numpy.ndarray]:
    """All digits as ``sklearn.datasets.load_digits()`` gives them, but without importing scikit-learn.

    Returns:
        images: ``[1797, 8, 8]``, float64, whole numbers from 0 (paper) to 16 (ink).
        labels: ``[1797]``, int64 from 0 to 9.

    Raises:
        FileNotFoundError: scikit-learn is not installed.
    """
    table = numpy.loadtxt(_file(), delimiter=",")  # [1797, 65]: 64 pixels and the label
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(numpy.int64)


def digits(seed: int = 0) -> Digits:
    """The digits as tensors, shuffled and split: 1,440 images to train on, 357 to test with.

    The split depends on ``seed`` alone, so it is the same on every rank.

    Args:
        seed: which of the many possible splits.

    Returns:
        Images ``[n, 1, 8, 8]`` from 0 to 1 and labels ``[n]``, for training and for the test.
    """
    import torch

    pixels, classes = digit_images()
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    images = (torch.from_numpy(pixels) / INK).float().unsqueeze(1)[order]
    labels = torch.from_numpy(classes)[order]
    return Digits(images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])


def _file() -> Path:
    """Where scikit-learn keeps the digits. ``find_spec`` finds a package without running it."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return file
    raise FileNotFoundError("the digits come with scikit-learn, and it is not installed: pip install scikit-learn")
