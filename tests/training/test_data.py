"""The digits are scikit-learn's, exactly, and cost no import of scikit-learn."""

from __future__ import annotations

import subprocess
import sys

import numpy
import pytest
import torch

from utils.training import data


def test_the_digits_equal_those_of_scikit_learn_exactly():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    images, labels = data.digit_images()
    numpy.testing.assert_array_equal(images, theirs.images)
    numpy.testing.assert_array_equal(labels, theirs.target)
    assert images.dtype == theirs.images.dtype
    assert labels.dtype == theirs.target.dtype == numpy.int64
    assert images.shape == (1797, 8, 8)


def test_every_digit_is_in_one_part_of_the_split_and_in_one_only():
    images, labels = data.digit_images()
    split = data.digits()
    together = torch.cat([split.train_images, split.test_images])
    written = sorted(
        (int(label), *image.flatten().mul(16).int().tolist())
        for image, label in zip(together, torch.cat([split.train_labels, split.test_labels]), strict=True)
    )
    original = sorted((int(label), *image.astype(int).ravel()) for image, label in zip(images, labels, strict=True))
    assert written == original


def test_shapes_types_and_ranges_are_as_documented():
    split = data.digits()
    assert split.train_images.shape == (1440, 1, 8, 8)
    assert split.test_images.shape == (357, 1, 8, 8)
    assert split.train_labels.shape == (1440,) and split.test_labels.shape == (357,)
    for images in (split.train_images, split.test_images):
        assert images.dtype == torch.float32 and images.min() == 0 and images.max() == 1
    for labels in (split.train_labels, split.test_labels):
        assert labels.dtype == torch.int64 and set(labels.tolist()) == set(range(data.CLASSES))


def test_the_split_depends_on_the_seed_alone():
    torch.manual_seed(123)
    one = data.digits()
    torch.manual_seed(456)
    state = torch.get_rng_state()
    same = data.digits()
    assert torch.equal(torch.get_rng_state(), state), "reading data must not disturb the learner's seed"
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one.test_labels, data.digits(seed=1).test_labels)


def test_neither_import_nor_reading_imports_scikit_learn_and_only_tensors_need_torch():
    code = (
        "import sys; from utils.training import data; assert 'torch' not in sys.modules; data.digit_images();"
        "assert 'torch' not in sys.modules; data.digits(); assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_without_scikit_learn_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install scikit-learn"):
        data.digit_images()
