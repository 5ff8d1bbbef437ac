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
from shlex import quote

_NEW_MOUNTS = 0x20000  # <linux/sched.h>
_PREFIX = "course-"
#: Where groups are made, and what limits them to so many bytes, without swap: in control groups of version 1 and 2.
_GROUPS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}


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
    if sys.platform != "linux" or ctypes.CDLL(None).unshare(_NEW_MOUNTS):
        raise OSError(why_no_files())
    with tempfile.NamedTemporaryFile("w") as file:  # (what is mounted lives on)
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        mounts = ["mount --make-rprivate /", f"mount --bind {file.name} {quote(path)}"]
        mounted = subprocess.run(["sh", "-c", " && ".join(mounts)], capture_output=True, text=True)
    if mounted.returncode:
        raise OSError(f"{path} cannot be replaced: {mounted.stderr.strip()}")


# ---------------------------------------------------------------------- memory
def why_no_limit() -> str | None:
    """One sentence why the memory of a process cannot be limited here; None if it can."""
    try:
        _new_group(1 << 30).rmdir()
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
    (_new_group(nbytes) / "cgroup.procs").write_text(str(os.getpid()))


def remove_groups() -> None:
    """Remove the groups of ``limit_memory`` in which no process is left."""
    for parent in _GROUPS:
        for group in parent.glob(f"{_PREFIX}*"):
            with suppress(OSError):
                group.rmdir()  # refused while a process is in it


def _new_group(nbytes: int) -> Path:
    for parent, limit in _GROUPS.items():
        group = parent / f"{_PREFIX}{secrets.token_hex(4)}"
        with suppress(OSError):
            if (parent / "cgroup.procs").exists():
                group.mkdir()
                (group / limit).write_text(str(nbytes))
                if (group / "memory.swap.max").exists():
                    (group / "memory.swap.max").write_text("0")
                return group
        with suppress(OSError):
            group.rmdir()
    raise OSError("no memory control group can be made here: that needs Linux, root and the memory controller")


def killed_by_the_kernel() -> list[str]:
    """What the kernel's log says of processes that it has killed for memory, newest last, without numbers of processes.

    Empty where the log may not be read.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10).stdout
        return [re.sub(r"^\[[ \d.]+\] ", "", line) for line in log.splitlines() if "Killed process" in line]
    return []
