"""Simulated GPUs are tested with small tensors: one thread of torch is enough. Many share four ranks."""

from collections.abc import Iterator

import pytest
import torch

import simgpu
from simgpu.time import happens_before
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


@pytest.fixture
def three_gpus() -> Iterator[None]:
    """A cluster of three GPUs. A test ends the watch for races that it begins."""
    with simgpu.cluster(gpus_per_node=3):
        torch.manual_seed(0)
        yield
    assert happens_before.watching is None
