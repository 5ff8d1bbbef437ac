"""Between a sandbox and the rest: first in new namespaces (Linux), with the rights to mount there and nothing else yet.

Here the instructor's home, the class and other learners' copies get out of sight, /tmp and /dev/shm are empty, the
course cannot be written to, and of the network only this machine's own loopback is left. Then the program starts, as
another user where the instructor is root, with no way to gain more rights.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import struct
import sys
from typing import Any

_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _NO_PROGRAMS_OF_OTHERS = 1, 32, 4096, 16384, 2 | 4  # <sys/mount.h>
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: a user's mount may not drop them
_DUMPABLE, _NO_NEW_PRIVILEGES = 4, 38  # <sys/prctl.h>
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP
_libc = ctypes.CDLL(None, use_errno=True)


def hide_memory() -> None:
    """From here on no process of the same user reads this one's memory, files and environment (Linux)."""
    if sys.platform == "linux":
        _libc.prctl(_DUMPABLE, 0, 0, 0, 0)


def limit(memory: int, processes: int) -> None:
    """From here on, for this process and all that it starts: no core files, no file larger than ``memory`` (bytes), so
    many processes (0: any number); no way to gain rights, and killed first where memory runs out (Linux)."""
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, memory), (resource.RLIMIT_NPROC, processes)):
        if most or what == resource.RLIMIT_CORE:
            resource.setrlimit(what, (most, most))
    if sys.platform == "linux":
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")


def main() -> None:
    """Run ``{"command", "user", "keep", "hide", "hide_last", "memory"}`` behind the walls."""
    config = json.loads(sys.argv[1])
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))  # ranks talk over it
    folder = os.getcwd()
    _hide(config)
    os.chdir(folder)  # as it is now
    rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if (user := config["user"]) is not None:
        rights += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    os.execvp(rights[0], [*rights, *config["command"]])


def _hide(config: dict[str, Any]) -> None:
    """Empty folders in place of those to hide; what is to be kept shows in them again, read-only but for the last."""
    open_kept = [(path, os.open(path, os.O_PATH)) for path in config["keep"]]
    for path, mode in config["hide"].items():
        if os.path.isdir(path):
            _mount("tmpfs", path, _NO_PROGRAMS_OF_OTHERS, "tmpfs", f"mode={mode},size={config['memory'] // 2}")
    for path, fd in open_kept:
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, _BIND | _RECURSIVE)
        if path != config["keep"][-1]:
            _mount("", path, _BIND | _REMOUNT | _READ_ONLY | os.statvfs(path).f_flag & _KEPT_FLAGS)
        os.close(fd)
    for path, mode in config["hide_last"].items():
        if os.path.isdir(path):
            _mount("tmpfs", path, _NO_PROGRAMS_OF_OTHERS, "tmpfs", f"mode={mode},size=4k")


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    source_, target_, kind_, options_ = (text.encode() or None for text in (source, target, kind, options))
    if _libc.mount(source_, target_, kind_, flags, options_):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source or 'again'} at {target}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
