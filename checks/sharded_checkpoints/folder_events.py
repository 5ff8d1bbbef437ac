"""What happens to the names in a folder, whoever does it: Linux tells (inotify), also of C++ and of child processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from typing import Any

_EVENTS = {
    0x002: "changed",
    0x008: "closed after writing",
    0x040: "moved from",
    0x080: "moved to",
    0x100: "made",
    0x200: "removed",
}
_HEAD = struct.Struct("iIII")  # watch, kind, cookie (the same for both ends of a move), length of the name


class FolderEvents:
    """Of one folder, from now on. Where the system does not tell (macOS), there are none."""

    def __init__(self, folder: str) -> None:
        self._file = -1
        with contextlib.suppress(AttributeError, OSError):
            libc = ctypes.CDLL(None)
            self._file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            libc.inotify_add_watch(self._file, os.fsencode(folder), sum(_EVENTS))

    def new(self) -> list[dict[str, Any]]:
        """What has happened since the last question, in order: ``event``, ``name``, ``cookie``."""
        found: list[dict[str, Any]] = []
        with contextlib.suppress(OSError):
            while self._file >= 0:
                data = os.read(self._file, 1 << 16)
                place = 0
                while place < len(data):
                    _, kind, cookie, length = _HEAD.unpack_from(data, place)
                    place += _HEAD.size
                    name = os.fsdecode(data[place : place + length].rstrip(b"\0"))
                    place += length
                    found += [{"event": e, "name": name, "cookie": cookie} for bit, e in _EVENTS.items() if kind & bit]
        return found
