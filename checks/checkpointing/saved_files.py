"""Files of checkpoints: how many bytes a step has written, which of them are whole, and how they are damaged."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zipfile
from pathlib import Path

CHECKPOINT = re.compile(r"step-(\d+)\.pt")


def sizes_in(folder: str) -> dict[str, tuple[int, int, int]]:
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                found[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def written(before: dict[str, tuple[int, int, int]], after: dict[str, tuple[int, int, int]]) -> int:
    """Bytes that files have more than before; those of new files, and of files that were written anew."""
    total = 0
    for name, now in after.items():
        was = before.get(name)
        if was != now:
            total += now[2] - was[2] if was and was[0] == now[0] and now[2] > was[2] else now[2]
    return total


def good(path: Path, spoilt: set[str]) -> bool:
    """Whether every byte of a checkpoint is what was written.

    Args:
        spoilt: digests of the files that the check has damaged.
    """
    content = path.read_bytes()
    if not content or hashlib.sha1(content).hexdigest() in spoilt:
        return False
    if not content.startswith(b"PK"):
        return True  # no archive of torch.save: nobody else but the answer knows
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError):
        return False


def checkpoints_in(folder: str) -> dict[int, Path]:
    """Files named as the exercise says, by step."""
    found = {int(match[1]): path for path in Path(folder).iterdir() if (match := CHECKPOINT.fullmatch(path.name))}
    return dict(sorted(found.items()))


def damage(path: Path, way: str) -> str:
    """Spoil a file: "cut off", "empty", "a changed byte" (of a tensor), "another changed byte". Returns its digest."""
    content, byte = bytearray(path.read_bytes()), "byte" in way
    if byte and content and not content.startswith(b"PK"):
        content[len(content) // 2] ^= 0x40
    elif byte and content:
        with zipfile.ZipFile(path) as archive:
            entries = [one for one in archive.infolist() if one.filename.endswith(".pkl") == (way != "a changed byte")]
            largest = max(entries, key=lambda entry: entry.file_size)
        names = int.from_bytes(content[largest.header_offset + 26 : largest.header_offset + 28], "little")
        extra = int.from_bytes(content[largest.header_offset + 28 : largest.header_offset + 30], "little")
        content[largest.header_offset + 30 + names + extra + largest.file_size // 2] ^= 0x40
    path.write_bytes(content if byte else content[: len(content) // 2 if way == "cut off" else 0])
    return hashlib.sha1(path.read_bytes()).hexdigest()
