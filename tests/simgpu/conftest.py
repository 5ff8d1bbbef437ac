"""Simulated GPUs are tested with small tensors: one thread of torch is enough. Many share four ranks."""

from collections.abc import Iterator

import pytest
import torch

from utils.ranks import World


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Four ranks, for all tests of a file."""
    with World(4, backend="gloo", timeout=200) as world:
        yield world
