"""One checkpoint file that survives a crash at any moment, and that is read without running code."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

_ZIP_BEGINS = b"PK\x03\x04"  # files of torch.save are zip archives


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the text is one sentence."""


def save(value: Any, path: str | Path) -> None:
    """Write a checkpoint in one process: after a crash there is the old file or the new one, never half a file.

    The bytes go to a temporary file in the same folder, and from the system's memory to the disk (fsync). Only then
    the file gets its name, in one step (rename), and the folder, which holds the name, goes to the disk too.

    Args:
        value: tensors and plain values in dictionaries and lists: what ``load`` reads without running code.
        path: its folder must exist.

    Raises:
        CheckpointError: no such folder, or the system refuses (a full disk). The file that was there before is intact.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"there is no folder {path.parent}: make it first, or correct its name")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch.save hides an OSError behind a RuntimeError of its own
        temporary.unlink(missing_ok=True)
        cause = _system_error(error)
        if cause is None:
            raise
        text = f"{path.name} could not be written ({cause.strerror}); what was saved before is untouched"
        raise CheckpointError(text) from error


def load(path: str | Path, map_location: Any = "cpu") -> Any:
    """Read a checkpoint in one process, after checking that every byte is what was written.

    ``torch.load`` notices a file that was cut off, but not a byte that has changed. The archive holds a checksum of
    each of its parts, so we compare.

    Args:
        path: the file.
        map_location: where tensors go, as for ``torch.load``. ``load_state_dict`` copies from there to where the model
            is, so the CPU is the right place unless you know better.

    Raises:
        CheckpointError: no such file, damaged, no checkpoint at all, or one that would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path.name} in {path.parent}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        with open(path, "rb") as file:
            begins = file.read(len(_ZIP_BEGINS))
        what = "was cut off or damaged" if begins in (b"", _ZIP_BEGINS) else "is not a checkpoint of torch"
        raise CheckpointError(f"{path.name} ({path.stat().st_size:,} bytes) {what}") from error
    if damaged is not None:
        raise CheckpointError(
            f"{path.name} is damaged: the bytes of {damaged} do not give the checksum stored with them"
        )
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error)) or re.search(r"function ([\w.]+)", str(error))
        what = f" ({found[1]})" if found else ""
        text = (
            f"{path.name} holds more than tensors and plain values{what}: to load it would run code of whoever made it"
        )
        raise CheckpointError(text) from error
    except RuntimeError as error:
        raise CheckpointError(f"{path.name} is not a checkpoint of torch") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _system_error(error: BaseException | None) -> OSError | None:
    """The OSError behind an exception, if there is one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
