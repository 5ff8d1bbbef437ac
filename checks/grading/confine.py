"""The warden: starts one program of a learner's, holds it to its limits, and leaves nothing of it behind.

``sandbox.py`` starts it as a process of its own, with the instructor's rights. What it starts has fewer:

- another user's rights, where the instructor is root;
- no way to gain more, no core files, no file larger than the memory it may use, killed first where memory runs out;
- where Linux allows namespaces (root, or a system that lets everybody make user namespaces): no sight of the
  instructor's home, the class, other learners' copies and anybody's processes, an empty /tmp and /dev/shm, and a
  course that it cannot write to.

It ends with the program's exit status, or with one of those below. Its own death ends the program too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

import psutil

from lessons.launchers.processes import kill_all
from utils.ranks.lifetimes import adopt_orphans, end_with

MEMORY, TIME, NOT_CONFINED = 121, 122, 123
_LOOK_EVERY = 0.1  # seconds
_NEW_MOUNTS, _NEW_USERS, _NEW_PIDS = 0x00020000, 0x10000000, 0x20000000  # <sched.h>
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18  # <sys/mount.h>
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: a user's mount may not drop them
_DEATH_SIGNAL, _DUMPABLE, _DROP_CAPABILITY, _NO_NEW_PRIVILEGES = 1, 4, 24, 38  # <sys/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)


def hide_memory() -> None:
    """From here on no process of the same user reads this one's memory, files and environment (Linux)."""
    if sys.platform == "linux":
        _libc.prctl(_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
    """Run ``{"command", "environment", "folder", "user", "namespaces", "keep", "hide", "memory", "seconds"}``."""
    config = json.loads(sys.argv[1])
    told: list[int] = []  # noted and not raised: Python drops what is raised at some moments
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    end_with(config["parent"])
    adopt_orphans()
    program = 0
    try:
        program = _start(config)
        status = _watch(program, config["memory"], config["seconds"], told)
    except OSError as error:
        print(error, file=sys.stderr)
        status = NOT_CONFINED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all(config["user"], config["namespaces"])
    os._exit(status)


def _start(config: dict[str, Any]) -> int:
    user, group = os.getuid(), os.getgid()
    if config["namespaces"]:
        _call("unshare", _NEW_PIDS | (0 if user == 0 else _NEW_USERS))
        if user != 0:
            for file, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                with open(f"/proc/self/{file}", "w") as written:
                    written.write(text)
    if program := os.fork():
        _let_go()
        return program
    try:
        if config["namespaces"]:
            _as_first_process(config)
        _become(config)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(NOT_CONFINED)


def _as_first_process(config: dict[str, Any]) -> None:
    """In the new list of processes: mount, fork the program, and bury who dies. Returns in the program only."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _call("unshare", _NEW_MOUNTS)
    _mount("", "/", _RECURSIVE | _PRIVATE)
    _hide(config)
    _mount("proc", "/proc", 0, "proc")
    if (program := os.fork()) == 0:
        return
    _let_go()
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGCONT)
        elif pid == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _let_go() -> None:
    """The request, and the pipe for what the program says, are the program's alone."""
    hide_memory()
    with open(os.devnull, "r+") as nowhere:
        os.dup2(nowhere.fileno(), 0)
        os.dup2(nowhere.fileno(), 1)


def _hide(config: dict[str, Any]) -> None:
    """Empty folders in place of those to hide; what is to be kept shows in them again, read-only but for the last."""
    open_kept = [(path, os.open(path, os.O_PATH)) for path in config["keep"]]
    for path, mode in config["hide"].items():
        if os.path.isdir(path):
            _mount("tmpfs", path, 2 | 4, "tmpfs", f"mode={mode},size={config['memory'] // 2}")
    for path, fd in open_kept:
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, _BIND | _RECURSIVE)
        if path != config["keep"][-1]:
            flags = os.statvfs(path).f_flag & _KEPT_FLAGS
            _mount("", path, _BIND | _REMOUNT | _READ_ONLY | flags)
        os.close(fd)
    for path, mode in config["hide_last"].items():
        if os.path.isdir(path):
            _mount("tmpfs", path, 2 | 4, "tmpfs", f"mode={mode},size=4k")


def _become(config: dict[str, Any]) -> None:
    """Be the program, with the learner's rights."""
    import resource

    user = config["user"]
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (config["memory"], config["memory"]))
    if sys.platform == "linux":
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        for capability in range(64):  # root without them cannot undo what was mounted here
            _libc.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
    if user is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (config["processes"], config["processes"]))
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    if sys.platform == "linux":
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    os.chdir(config["folder"])
    os.execve(config["command"][0], config["command"], config["environment"])


def _watch(program: int, memory: int, seconds: float, told: list[int]) -> int:
    end = time.monotonic() + seconds
    while not told:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGCONT)
        elif pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if time.monotonic() > end:
            return TIME
        if _memory_of(psutil.Process().children(recursive=True), memory) > memory:
            return MEMORY
        time.sleep(_LOOK_EVERY)
    return 128 + told[0]


def _end_all(user: int | None, namespaces: bool) -> None:
    """Nothing that was started here runs on."""
    # That user has no other processes, and kill(-1) meets them all at once. So does the end of a namespace.
    if user is not None and not namespaces and os.fork() == 0:
        os.setuid(user)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    kill_all(lambda: psutil.Process().children(recursive=True))
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # a namespace's first process is gone when all the others are


def _memory_of(processes: list[psutil.Process], limit: int) -> int:
    """Bytes of memory that they use; what several share is counted once where the sum would exceed the limit."""
    total = 0
    for count_shared_once in (False, True):
        total = 0
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                total += process.memory_full_info().pss if count_shared_once else process.memory_info().rss
        if total <= limit or sys.platform != "linux":
            break
    return total


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    encoded = [text.encode() or None for text in (source, target, kind, options)]
    _call("mount", *encoded[:3], flags, encoded[3])


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
