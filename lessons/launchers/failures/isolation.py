"""What a process can have for itself on Linux, as root: files with another content, and a limit on its memory.

Used to produce two failures on purpose: a host name that does not resolve, and a process that the kernel's
out-of-memory killer ends. Other processes notice nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000  # <linux/sched.h>, <linux/mount.h>
_PREFIX = "course-"


# ---------------------------------------------------------------------- files
def why_no_files() -> str | None:
    """One sentence why a process cannot have files of its own here; None if it can."""
    if sys.platform != "linux":
        return "files of a process's own (mount namespaces) exist on Linux only"
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
    return None if allowed else "files of a process's own (mount namespaces) need root"


def replace_file(path: str, text: str) -> None:
    """From now on this process, and those it starts, see ``text`` in this file; all others see what is there.

    Args:
        path: of a file that exists.

    Raises:
        OSError: not Linux, not root, or no such file.
    """
    if sys.platform != "linux":
        raise OSError("files of a process's own exist on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.NamedTemporaryFile("w", prefix=_PREFIX, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    try:
        for result in (
            libc.unshare(_NEW_MOUNTS),
            libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None),
            libc.mount(file.name.encode(), path.encode(), None, _BIND, None),
        ):
            if result != 0:
                raise OSError(ctypes.get_errno(), f"{path} cannot be replaced: {os.strerror(ctypes.get_errno())}")
    finally:
        os.unlink(file.name)  # what is mounted lives on


# ---------------------------------------------------------------------- memory
def why_no_limit() -> str | None:
    """One sentence why the memory of a process cannot be limited here; None if it can."""
    try:
        os.rmdir(_new_group(1 << 30))
    except OSError as error:
        return str(error)
    return None


def limit_memory(nbytes: int) -> None:
    """From now on this process may have so many bytes of memory; when it takes more, the kernel kills it.

    Makes a memory control group and moves this process there (cgroup v1 or v2). What it has already is not counted.
    ``remove_groups`` takes away groups whose processes have ended.

    Raises:
        OSError: there is no memory controller here, or not for this user.
    """
    Path(_new_group(nbytes), "cgroup.procs").write_text(str(os.getpid()))


def remove_groups() -> None:
    """Remove the groups of ``limit_memory`` in which no process is left."""
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        for group in parent.glob(f"{_PREFIX}*"):
            with suppress(OSError):
                group.rmdir()  # refused while a process is in it


def _new_group(nbytes: int) -> str:
    name = _PREFIX + secrets.token_hex(4)
    limits = (
        (Path("/sys/fs/cgroup/memory"), {"memory.limit_in_bytes": nbytes}),  # v1
        (Path("/sys/fs/cgroup"), {"memory.max": nbytes, "memory.swap.max": 0}),  # v2
    )
    for parent, files in limits:
        if not parent.joinpath("cgroup.procs").exists():
            continue
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for file, value in files.items():
                if group.joinpath(file).exists() or file != "memory.swap.max":  # without swap there is no such file
                    group.joinpath(file).write_text(str(value))
        except OSError:
            group.rmdir()
            continue
        return str(group)
    raise OSError("no memory control group can be made here: that needs Linux, root and the memory controller")


def killed_by_the_kernel(pid: int | None = None) -> list[str]:
    """What the kernel's log says of processes that it has killed for memory, newest last, without numbers of processes.

    Empty where the log may not be read.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10).stdout
        lines = [line for line in log.splitlines() if "Killed process" in line]
        lines = [line for line in lines if pid is None or f"process {pid} " in line]
        return [re.sub(r"^\[[ \d.]+\] ", "", line) for line in lines]
    return []
