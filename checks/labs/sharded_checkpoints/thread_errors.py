"""Check of what ``AsyncSaver`` does with errors of ``write``: each is heard, once, and nothing is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from checks.engine import Reference, exercise, refuse, same
from checks.engine.processes import run
from checks.labs.sharded_checkpoints.slow_disk import SlowDisk, soon

OFFICIAL = Reference("sharded_checkpoints", "AsyncSaver")


class CheckpointException(BaseException):
    """No Exception, as DCP's."""


CASES = [  # what write raises, who has to tell of it, whether there is a former file
    (OSError(28, "No space left on device"), "wait", True),
    (MemoryError(), "save", False),  # before there is a file; the others: half done
    (CheckpointException("the disk is gone"), "wait", False),
    (SystemExit(3), "save", True),
    (KeyboardInterrupt(), "wait", True),
]


def play(AsyncSaver: Any) -> None:
    for error, by, older in CASES:
        with tempfile.TemporaryDirectory(prefix="check-") as folder:
            _fails(AsyncSaver, Path(folder), error, by, older)
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        (taken := Path(folder, "taken.pt")).mkdir()
        saver = AsyncSaver(SlowDisk(free=True).write)
        heard = _heard(lambda: (saver.save({}, str(taken)), saver.wait()))
        words = "the file cannot get its name (a folder has it), and wait() says nothing: an error of the rename comes "
        refuse(heard is None, f"{words}out too")


def _fails(AsyncSaver: Any, folder: Path, error: BaseException, by: str, older: bool) -> None:
    """A write that fails; who hears of it, and what comes after it."""
    disk, path, other, state = SlowDisk(free=True), folder / "last.pt", folder / "next.pt", {"w": torch.ones(3)}
    disk.at_once = isinstance(error, MemoryError)
    what = f"write raises {type(error).__name__}" + " before there is a file" * disk.at_once
    if older:
        torch.save("older", path)
    before, disk.error = _files(folder), error
    saver = AsyncSaver(disk.write)
    heard = _heard(lambda: saver.save(state, str(path)))
    refuse(
        heard is not None, f"{what}, and save() raises at once: write is to run in a thread, and save to have returned"
    )
    refuse(not soon(lambda: disk.ended), "save has returned, and write is not called in a thread of this process")
    disk.error = None
    told = _heard(saver.wait if by == "wait" else lambda: saver.save(state, str(other)))
    words = f"{what}, and the next {by}() says nothing: whatever the thread catches, the next wait() or save() raises"
    refuse(told is None, words)
    words = f"{what}, and the next {by}() raises something else: raise that very exception"
    refuse(told is not error, words, measured=repr(told), expected=repr(error))
    again, files = _heard(saver.wait), _files(folder)
    refuse(disk.begun > 1, f"{what}, and the save() that tells of it begins to write: it is to begin nothing")
    lost = files.get(path.name) != before.get(path.name)
    refuse(lost and before, f"{what}, and the former file is gone or changed")
    refuse(lost, f"{what}, and there is a file under the final name where there was none: it is no checkpoint")
    words = f"{what}, and the half-written file stays and takes up room: remove it"
    refuse(files != before, words, measured=", ".join(sorted(files.keys() - before.keys())))
    later = [again, _heard(lambda: saver.save(state, str(path))), _heard(saver.wait)]
    words = f"{what}, and it comes out a second time: whoever has heard it saves on"
    refuse(any(one is error for one in later), words)
    works = path.exists() and same(torch.load(path), state) and later == [None] * 3
    told_later = ", ".join(repr(one) for one in later if one is not None)
    words = f"{what}, and when that was told, saving does not work any more"
    refuse(not works, words, measured=told_later or "the next file is missing or another")


def _files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def _heard(call: Callable[[], Any]) -> BaseException | None:
    """What it raises."""
    try:
        call()
    except BaseException as error:
        return error
    return None


@exercise(title="No error is lost", difficulty=2, minutes=15, official=OFFICIAL)
def errors(AsyncSaver: Any) -> dict[str, str]:
    """Judge the same class with a ``write`` that fails."""
    run(play, AsyncSaver)
    return {"errors that came out": ", ".join(type(error).__name__ for error, _, _ in CASES)}
