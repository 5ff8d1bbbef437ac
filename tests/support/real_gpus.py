"""Tests that need real GPUs: skipped where there are none, and all that `make test-gpu` runs where there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from utils.hardware.nvml import count_gpus

Test = TypeVar("Test", bound=Callable)
GPUS = count_gpus().count if torch.version.cuda else 0


def needs_gpus(count: int) -> Callable[[Test], Test]:
    """Mark a test: it needs so many real GPUs."""
    reason = f"needs {'a real GPU' if count == 1 else f'{count} real GPUs'} that torch can use"
    return lambda test: pytest.mark.gpu(pytest.mark.skipif(count > GPUS, reason=reason)(test))
