"""What a test changes in pytest's process is put back, so that no order of tests matters."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from process_state import kept

import simgpu
from simgpu.cluster import exists

Change = tuple[Callable[[], Any], Callable[[], Any]]
CHANGES: dict[str, Change] = {
    "TF32 in products": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: torch.backends.cuda.matmul.allow_tf32,
    ),
    "TF32 in convolutions": (
        lambda: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
        lambda: torch.backends.cudnn.allow_tf32,
    ),
    "float32's precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "the default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "the default device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "deterministic algorithms": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "torch's random state": (lambda: torch.manual_seed(123), lambda: torch.get_rng_state().sum().item()),
    "Python's random state": (lambda: random.seed(1), lambda: hash(random.getstate())),
    "NumPy's random state": (lambda: np.random.seed(1), lambda: str(np.random.get_state())),
    "a new variable": (lambda: os.environ.update(COURSE_NEW="1"), lambda: os.environ.get("COURSE_NEW")),
    "a changed variable": (lambda: os.environ.update(PATH=""), lambda: os.environ["PATH"]),
    "a removed variable": (lambda: os.environ.pop("PATH"), lambda: os.environ.get("PATH")),
    "the working folder": (lambda: os.chdir("/"), os.getcwd),
    "sys.path": (lambda: sys.path.insert(0, "/elsewhere"), lambda: [*sys.path]),
    "filters of warnings": (lambda: warnings.simplefilter("ignore"), lambda: [*warnings.filters]),
    "matplotlib's backend": (lambda: matplotlib.use("svg"), matplotlib.get_backend),
    "matplotlib's settings": (
        lambda: matplotlib.rcParams.update({"font.size": 3}),
        lambda: matplotlib.rcParams["font.size"],
    ),
    "the simulated cluster": (lambda: simgpu.cluster(gpus_per_node=2), exists),
}


@pytest.mark.parametrize("thing", CHANGES)
def test_what_a_test_changes_is_put_back(thing: str) -> None:
    change, look = CHANGES[thing]
    before = look()
    with kept():
        change()
        assert look() != before
    assert look() == before


def test_every_test_has_the_fixture(tmp_path: Path) -> None:
    """The second test of a file sees nothing of what the first has changed."""
    root = Path(__file__).parents[2]
    (tmp_path / "test_two.py").write_text(
        "import torch\n"
        "def test_first(): torch.backends.cuda.matmul.allow_tf32 = True\n"
        "def test_second(): assert not torch.backends.cuda.matmul.allow_tf32\n"
    )
    paths = os.pathsep.join(map(str, (root, root / "tests" / "support")))
    options = ("-p", "no:cacheprovider", "-p", "conftest", "-c", f"{root}/pyproject.toml", "--rootdir", str(root))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
