"""What a learner has done so far, kept in a small JSON file between sessions.

The file is ``.progress.json`` at the root of the course, or what the environment variable COURSE_PROGRESS
names. Losing it harms nobody, so no trouble with it ever reaches a notebook.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from checks.engine.verdicts import NOT_STARTED, RIGHT, WRONG

LOCATION = "COURSE_PROGRESS"
ROOT = Path(__file__).resolve().parents[1]


def location() -> Path:
    """Where the results are kept."""
    if named := os.environ.get(LOCATION):
        return Path(named).expanduser()
    # Installed without the repository around it, the course keeps its file where the learner works.
    return (ROOT if (ROOT / "pyproject.toml").exists() else Path.cwd()) / ".progress.json"


def remember(lab: str, name: str, state: str) -> None:
    """Keep the result of one exercise. Not started erases nothing: running a fresh lab is no step back."""
    if state not in (RIGHT, WRONG) or _in_solutions():
        return
    path = location()
    try:
        with _lock(path.parent):
            results = recall()
            results[f"{lab}/{name}"] = state
            _write(path, json.dumps({"version": 1, "results": results}, indent=1, sort_keys=True) + "\n")
    except OSError:
        pass  # a read-only folder, a full disk: the verdict matters more than its memory


def recall() -> dict[str, str]:
    """The last result of each exercise tried, by "lab/exercise"; empty if the file is missing or broken."""
    try:
        content = json.loads(location().read_text(encoding="utf-8"))
        results = content["results"]
        return {
            key.partition("_")[2] if key[:2].isdigit() else key: state  # (as files of before 2026-11-22 have it)
            for key, state in results.items()
            if isinstance(key, str) and state in (NOT_STARTED, WRONG, RIGHT)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _in_solutions() -> bool:
    # Whoever runs the solutions has not solved anything. (Notebooks run in the folder that they are in.)
    try:
        return Path.cwd() == ROOT / "solutions"
    except OSError:
        return False


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time read, change and write."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY)  # the folder itself, so that no lock file is left behind
    try:
        with contextlib.suppress(OSError):  # a file system without locks, such as a Windows folder seen from Linux
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".progress-")
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
