"""What a test may change in pytest's own process, and how it is put back: ``kept()`` around each test (conftest.py).

A script that sets ``allow_tf32`` in one test once changed the simulated times of all later tests of the same worker.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch


def _restore_environment(before: dict[str, str]) -> None:
    for name in {*os.environ, *before} - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


def _restore_precision(before: tuple[str, bool, bool]) -> None:
    torch.set_float32_matmul_precision(before[0])  # (sets the next one, too)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]


def _folder() -> str | None:
    with suppress(FileNotFoundError):  # a test's folder that is gone
        return os.getcwd()
    return None


@contextmanager
def kept() -> Iterator[None]:
    """Put back torch's global settings, random states, the environment, the working folder, ``sys.path``, filters of
    warnings, matplotlib's settings and the simulated cluster."""
    environment, folder, path = dict(os.environ), _folder(), [*sys.path]
    precision = (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    states = random.getstate(), np.random.get_state(), torch.random.default_generator.get_state()
    filters = [*warnings.filters]
    matplotlib, cluster = sys.modules.get("matplotlib"), sys.modules.get("simgpu.cluster")
    settings = dict.copy(matplotlib.rcParams) if matplotlib else None
    simulated = cluster._current if cluster else None
    try:
        yield
    finally:
        _restore_environment(environment)
        if folder and _folder() != folder:
            os.chdir(folder)
        sys.path[:] = path
        _restore_precision(precision)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_grad_enabled(gradients)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.default_generator.set_state(states[2])
        if warnings.filters != filters:
            warnings.filters[:] = filters
            warnings._filters_mutated()  # type: ignore[attr-defined]
        if matplotlib and settings is not None and dict.copy(matplotlib.rcParams) != settings:
            dict.update(matplotlib.rcParams, settings)
        cluster = sys.modules.get("simgpu.cluster")
        if cluster and cluster._current is not simulated:
            cluster.make_current(simulated)
