"""A place where one learner's code runs: a copy of their folder, an environment of its own, limits, and an end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from course.build import LabError
from course.outline import ROOT
from lessons.launchers.processes import kill_all

_ANSWERS = ("solutions", "tests/answers")
_PASSED_ON = re.compile(
    "PATH|LANG|LC_ALL|LC_CTYPE|TZ|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|(OMP|MKL|ATEN|ONEDNN|RANKS)_.*"
)
_PROCESSES = 4096  # of another user, with all their threads, of which torch makes one for each processor
_UNSHARE = ["--mount", "--mount-proc", "--net", "--ipc", "--pid", "--fork", "--kill-child"]
_LOOK_EVERY, _MOST_ERRORS = 0.2, 1 << 20  # seconds, bytes


class Interrupted(Exception):
    """The grading was stopped."""


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
        self.other_user = os.getuid() == 0 and not self.same_user
        taken = {entry.pw_uid for entry in pwd.getpwall()}
        free = [number for number in range(64_000, 65_000) if number not in taken]
        self._users = itertools.cycle(free if self.other_user else [None])
        why = ""
        for namespaces in (True, False) if self.may_use_namespaces else (False,):
            self.namespaces = namespaces
            with self.sandbox() as place:
                said, _, why = place.run("notebook", {"hello": True}, 60)
            if said == [{"hello": True}]:
                return self
        why = " ".join(why.split())[-200:] or "it said nothing"
        if not self.other_user:
            raise LabError(f"learners' code cannot run here ({why}).")
        raise LabError(
            f"learners' code cannot run as another user here: it must be able to read {ROOT} and {sys.base_prefix} "
            f"({why}). Put the course where every user can read it, or grade with your own rights: "
            "make grade DIR=folder ARGS=--same-user."
        )

    def __exit__(self, *_: object) -> None:
        self.stopped.set()

    @property
    def words(self) -> str:
        """What learners' code can do here, for whoever grades."""
        user = "as another user" if self.other_user else "with your rights"
        sees = "without network, and without sight of your files and processes"
        if not self.namespaces:
            sees = "THIS SYSTEM CANNOT HIDE the class's folder and your processes: grade strangers in a container"
        memory = f"{self.limits.memory / (1 << 30):g} GB"
        return f"Learners' code runs {user}; {sees}; at most {self.limits.notebook:.0f} s and {memory} for a notebook."

    @contextlib.contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """A place for one notebook; nothing of it is left at the end."""
        with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
            place = Sandbox(self, Path(folder).resolve(), next(self._users))
            place.own(place.folder)
            yield place


@dataclass
class Sandbox:
    """One notebook's place.

    Args:
        folder: what the learner's code may write to, and nothing else; ``work`` is the copy of their folder.
        user: the number of another user, or None.
    """

    place: Sandboxes
    folder: Path
    user: int | None

    def copy(self, folder: Path, files_only: bool) -> None:
        """The learner's own files."""
        folders = (lambda where, names: [name for name in names if Path(where, name).is_dir()]) if files_only else None
        try:
            shutil.copytree(folder, self.folder / "work", True, folders, ignore_dangling_symlinks=True)
        except shutil.Error as error:
            raise LabError(f"{folder} cannot be copied: {error.args[0][0][2]}.") from None
        for path in (self.folder / "work", *(self.folder / "work").rglob("*")):
            self.own(path)

    def own(self, path: Path) -> None:
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
        if self.user is not None:
            os.chown(path, self.user, self.user, follow_symlinks=False)

    def run(self, task: str, request: dict[str, Any], seconds: float) -> tuple[list[dict[str, Any]], str, str]:
        """Run ``inside.py`` in here.

        Args:
            task: "notebook" or "judge".
            request: what it reads from its standard input.
            seconds: after which it is ended, with all that it has started.

        Returns:
            The lines of JSON that it said; why it ended: "memory", "time", "itself" (not well), or ""; its errors.

        Raises:
            Interrupted: the grading is over.
        """
        home = Path(tempfile.mkdtemp(prefix="home-", dir=self.folder))
        (home / "tmp").mkdir()
        for path in (home, home / "tmp"):
            self.own(path)
        memory, work = self.place.limits.memory, self.folder / "work"
        limits = str(memory), str(_PROCESSES if self.user else 0)
        command = [sys.executable, "-P", "-m", "checks.grade.inside", task, *limits]
        options: dict[str, Any] = {"env": _environment(home), "cwd": work if work.exists() else home}
        if self.place.namespaces:
            config = self._hidden() | {"command": command, "user": self.user, "memory": memory}
            walls = [sys.executable, "-P", "-m", "checks.grade.walls", json.dumps(config)]
            rights = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
            # A shell is the first process in there: it buries whoever dies without a parent.
            shell = ["sh", "-c", '"$@"; exit $?', "sh"]
            command = ["setpriv", "--pdeathsig=KILL", "unshare", *rights, *_UNSHARE, *shell, *walls]
        elif self.user is not None:
            options |= {"user": self.user, "group": self.user, "extra_groups": []}
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
            given.write(json.dumps(request).encode())
            given.seek(0)
            pipes: dict[str, Any] = {"stdin": given, "stdout": said, "stderr": errors, "start_new_session": True}
            try:
                with subprocess.Popen(command, **pipes, **options) as process:
                    why = self._watch(process, time.monotonic() + seconds)
            except OSError as error:
                return [], "itself", str(error)
            for file in (said, errors):
                file.seek(0)
            why = why or ("itself" if process.returncode else "")
            return _lines(said.read()), why, errors.read(_MOST_ERRORS).decode(errors="replace")

    def _watch(self, process: subprocess.Popen[bytes], end: float) -> str:
        """Until it ends or breaks a limit: which one. Nothing that it has started is left."""
        started: set[psutil.Process] = set()
        try:
            while process.poll() is None:
                if self.place.stopped.wait(_LOOK_EVERY):
                    raise Interrupted
                with contextlib.suppress(psutil.Error):
                    started.update(psutil.Process(process.pid).children(recursive=True))
                if time.monotonic() > end:
                    return "time"
                if _memory(started, self.place.limits.memory) > self.place.limits.memory:
                    return "memory"
            return ""
        finally:
            process.kill()
            kill_all(lambda: [one for one in started if one.is_running()])
            if self.user is not None and not self.place.namespaces:  # that user has no other processes
                kill = ["kill", "-9", "-1"]
                subprocess.run(kill, user=self.user, group=self.user, extra_groups=[], stderr=subprocess.DEVNULL)

    def _hidden(self) -> dict[str, Any]:
        """What is out of sight, with the mode of the empty folder in its place, and what is to be kept within it."""
        hide, last = {str(Path.home().resolve()): "711"}, {str(ROOT / name): "555" for name in _ANSWERS}
        hide |= {path: "1777" for path in ("/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir())}
        given = [sys.base_prefix, sys.prefix, str(ROOT), *_searched("PYTHONPATH", "LD_LIBRARY_PATH")]
        code = [name for path in map(os.path.abspath, given) for name in (path, os.path.realpath(path))]
        keep = [path for path in dict.fromkeys(code) if os.path.isdir(path) and path not in ("/", "/usr")]
        keep.append(str(self.folder))
        if any(Path(path).is_relative_to(self.place.hidden) for path in keep):
            hide |= {str(self.place.hidden): "711"}
        else:
            last |= {str(self.place.hidden): "000"}
        hide.pop("/", None)  # the home of some users, in containers
        return {"keep": keep, "hide": hide, "hide_last": last}


def _lines(text: bytes) -> list[dict[str, Any]]:
    said = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            said.append(json.loads(line))
    return said


def _memory(processes: set[psutil.Process], limit: int) -> int:
    """The bytes that processes use; what several share is counted once where the sum is more than is allowed."""
    for kind in ("rss", "pss") if sys.platform == "linux" else ("rss",):
        total = 0
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                total += getattr(process.memory_full_info() if kind == "pss" else process.memory_info(), kind)
        if total <= limit:
            break
    return total


def _environment(home: Path) -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    passed["PYTHONPATH"] = os.pathsep.join([str(ROOT), *map(os.path.abspath, _searched("PYTHONPATH"))])
    passed["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), passed.get("PATH", os.defpath)))
    own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "COURSE_PROGRESS": str(home / "progress.json")}
    return passed | own | {"USER": "learner", "LOGNAME": "learner", "PYTHONNOUSERSITE": "1"}


def _searched(*names: str) -> list[str]:
    return [path for name in names for path in os.environ.get(name, "").split(os.pathsep) if path]
