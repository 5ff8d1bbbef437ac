"""A place where one learner's code runs: a copy of their folder, an environment of its own, limits, and an end."""

from __future__ import annotations

import itertools
import json
import os
import pwd
import secrets
import shutil
import stat
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from checks.grading.program import Program
from course.build import LabError
from course.outline import ROOT

_ANSWERS = ("solutions", "tests/answers")
_PROCESSES = 4096  # with all their threads, of which torch makes one for each processor
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_PASSED_ON_PREFIXES = ("OMP_", "MKL_", "ATEN_", "ONEDNN_", "RANKS_")


@dataclass(frozen=True)
class Limits:
    """Seconds for a cell and for a notebook, and bytes of memory for a notebook and for each check."""

    cell: float = 60
    notebook: float = 600
    memory: int = 4 << 30


@dataclass
class Sandboxes:
    """Where all learners' code of a grading runs. Use it as a context manager.

    Args:
        hidden: the class's folder.
        limits: for each notebook.
        same_user: run it with the instructor's rights, also where the instructor is root.
        stopped: set it, and what runs is ended.

    Raises:
        LabError: if the course cannot be used from there.
    """

    hidden: Path
    limits: Limits
    same_user: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    namespaces: bool = field(default=False, init=False)
    may_use_namespaces: ClassVar[bool] = sys.platform == "linux"

    def __enter__(self) -> Sandboxes:
        self.base = Path(tempfile.mkdtemp(prefix="grade-")).resolve()
        self.base.chmod(0o711)
        self._numbers = itertools.count(1)
        self._users = itertools.cycle(_free_users() if self.other_user else [None])
        try:
            self._try_out()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        shutil.rmtree(self.base, ignore_errors=True)

    @property
    def other_user(self) -> bool:
        return os.getuid() == 0 and not self.same_user

    @property
    def words(self) -> str:
        """What learners' code can do here, for whoever grades."""
        user = "as another user" if self.other_user else "with your rights"
        sees = (
            "without sight of your files and processes"
            if self.namespaces
            else ("THIS SYSTEM CANNOT HIDE the class's folder and your processes: grade strangers in a container")
        )
        memory = f"{self.limits.memory / (1 << 30):g} GB"
        return f"Learners' code runs {user}; {sees}; at most {self.limits.notebook:.0f} s and {memory} for a notebook."

    def _try_out(self) -> None:
        said: list[str] = []
        for namespaces in (True, False) if self.may_use_namespaces else (False,):
            self.namespaces = namespaces
            with self.sandbox() as place:
                run = place.start("checks.grading.kernel", {"hello": True}, 60)
                if any(line.get("hello") for line in run.lines(60)):
                    return
            said.append(run.errors)
        why = " ".join(said[-1].split())[-200:] or "it said nothing"
        if not self.other_user:
            raise LabError(f"learners' code cannot run here ({why}).")
        raise LabError(
            f"learners' code cannot run as another user here: it must be able to read {ROOT} and {sys.base_prefix} "
            f"({why}). Put the course where every user can read it, or grade with your own rights: "
            "make grade DIR=folder ARGS=--same-user."
        )

    def sandbox(self) -> Sandbox:
        """A place for one notebook."""
        return Sandbox(self, self.base / str(next(self._numbers)), next(self._users))


class Sandbox:
    """One notebook's place. Use it as a context manager; nothing of it is left at the end.

    Attributes:
        folder: what the learner's code may write to, and nothing else; ``work`` is the copy of their folder.
    """

    def __init__(self, place: Sandboxes, folder: Path, user: int | None) -> None:
        self.place, self.folder, self.user = place, folder, user

    def __enter__(self) -> Sandbox:
        self.folder.mkdir(mode=0o700)
        self._own(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def copy(self, folder: Path, files_only: bool) -> None:
        """The learner's own files: what is neither file nor folder (pipes, sockets) stays where it is."""

        def left_out(where: str, names: list[str]) -> list[str]:
            kinds = {name: os.lstat(os.path.join(where, name)).st_mode for name in names}
            usual = (stat.S_ISREG, stat.S_ISLNK) if files_only else (stat.S_ISREG, stat.S_ISLNK, stat.S_ISDIR)
            return [name for name, mode in kinds.items() if not any(is_kind(mode) for is_kind in usual)]

        work = self.folder / "work"
        try:
            shutil.copytree(folder, work, symlinks=True, ignore=left_out, ignore_dangling_symlinks=True)
        except shutil.Error as error:
            raise LabError(f"{folder} cannot be copied: {error.args[0][0][2]}.") from None
        for where, folders, files in os.walk(work):
            for name in files:
                self._own(Path(where, name))
            for name in [*folders, "."]:
                self._own(Path(where, name))

    def _own(self, path: Path) -> None:
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
        if self.user is not None:
            os.chown(path, self.user, self.user, follow_symlinks=False)

    def start(self, module: str, request: dict[str, Any], seconds: float) -> Program:
        """Start a module of this package inside, in an empty folder of its own below ``folder``.

        Args:
            request: what it reads from its standard input.
            seconds: after which it is ended, with all that it has started.
        """
        home = self.folder / f"home-{secrets.token_hex(4)}"
        for path in (home, home / "tmp"):
            path.mkdir()
            self._own(path)
        work = self.folder / "work"
        hide, last = {str(Path.home().resolve()): "711"}, {str(ROOT / name): "555" for name in _ANSWERS}
        hide |= {path: "1777" for path in ("/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir())}
        keep = [*_code(), str(self.folder)]
        if any(Path(path).is_relative_to(self.place.hidden) for path in keep):
            hide |= {str(self.place.hidden): "711"}
        else:
            last |= {str(self.place.hidden): "000"}
        hide.pop("/", None)  # the home of some users, in containers
        config = {
            "parent": os.getpid(),
            "command": [sys.executable, "-P", "-m", module],
            "environment": _environment(home),
            "folder": str(work if work.exists() else home),
            "user": self.user,
            "namespaces": self.place.namespaces,
            "keep": keep,
            "hide": hide,
            "hide_last": last,
            "memory": self.place.limits.memory,
            "processes": _PROCESSES,
            "seconds": seconds,
        }
        warden = [sys.executable, "-P", "-m", "checks.grading.confine", json.dumps(config)]
        return Program(warden, request, self.place.stopped)


def _environment(home: Path) -> dict[str, str]:
    passed = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    if searched := passed.get("PYTHONPATH"):
        passed["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in searched.split(os.pathsep) if path)
    passed["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), passed.get("PATH", os.defpath)))
    return passed | {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "USER": "learner",
        "LOGNAME": "learner",
        "PYTHONNOUSERSITE": "1",
        "COURSE_PROGRESS": str(home / "progress.json"),
    }


def _code() -> list[str]:
    """The folders that Python and the course are read from."""
    searched = os.pathsep.join(os.environ.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH"))
    given = [sys.base_prefix, sys.prefix, str(ROOT), *searched.split(os.pathsep)]
    paths = [os.path.abspath(path) for path in given if path]
    both = [name for path in paths if os.path.isdir(path) for name in (path, os.path.realpath(path))]
    return [path for path in dict.fromkeys(both) if path not in ("/", "/usr")]


def _free_users() -> list[int]:
    """Numbers of users that nobody has."""
    taken = {process.info["uids"].real for process in psutil.process_iter(["uids"]) if process.info["uids"]}
    taken |= {entry.pw_uid for entry in pwd.getpwall()}
    return [number for number in range(64_000, 65_000) if number not in taken]
