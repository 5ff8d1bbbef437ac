"""A copy of the course in which tests may change what they like, and commands that run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from course.outline import ROOT

_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


def copy_course(to: Path, *parts: str) -> Path:
    """Copy these folders, and the files beside them that tests read."""
    for part in parts:
        shutil.copytree(ROOT / part, to / part, ignore=_NOT_COPIED)
    for path in [*ROOT.glob("*.md"), *map(ROOT.joinpath, ("LICENSE", "Makefile", "pyproject.toml"))]:
        shutil.copy(path, to)
    return to


def run_there(root: Path, command: Sequence[str]) -> None:
    """Run Python in the copy, with the copy's own modules; it has to end well."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
