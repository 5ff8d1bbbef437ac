"""Check of what ``AsyncSaver`` does with errors of ``write``: each is heard, once, and nothing is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from checks.engine import exercise, refuse, same
from checks.engine.processes import run
from checks.labs.sharded_checkpoints.backgrounds import OFFICIAL, SlowDisk, soon


class CheckpointException(BaseException):
    """No Exception, as DCP's."""


CASES = [  # what write raises, who has to tell of it, whether there is a former file
    (OSError(28, "No space left on device"), "wait", True),
    (MemoryError(), "save", False),  # before there is a file; the others: half done
    (CheckpointException("the disk is gone"), "wait", False),
    (SystemExit(3), "save", True),
    (KeyboardInterrupt(), "wait", True),
]


@exercise(title="No error is lost", difficulty=2, minutes=15, official=OFFICIAL)
def errors(AsyncSaver: Any) -> dict[str, str]:
    """Judge the same class with a ``write`` that fails."""
    run(play, AsyncSaver)
    return {"errors that came out": ", ".join(type(error).__name__ for error, _, _ in CASES)}


def play(AsyncSaver: Any) -> None:
    for error, by, older in CASES:
        with tempfile.TemporaryDirectory(prefix="check-") as folder:
            _fails(AsyncSaver, Path(folder), error, by, older)
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        (taken := Path(folder, "taken.pt")).mkdir()
        saver = AsyncSaver(SlowDisk(free=True).write)
        told = _heard(lambda: (saver.save({}, str(taken)), saver.wait()))
        refuse(told is None, "the file cannot get its name, which a folder has, and wait() says nothing: tell it too")


def _fails(AsyncSaver: Any, folder: Path, error: BaseException, by: str, older: bool) -> None:
    """A write that fails; who hears of it, and what comes after it."""
    disk, path, state = SlowDisk(free=True), folder / "last.pt", {"w": torch.ones(3)}
    disk.error, disk.at_once, saver = error, isinstance(error, MemoryError), AsyncSaver(disk.write)
    what = f"write raises {type(error).__name__}{' before there is a file' * disk.at_once}, and"
    if older:
        torch.save("older", path)
    before = _files(folder)
    at_once = _heard(lambda: saver.save(state, str(path)))
    refuse(at_once, f"{what} save() raises at once: write is to run in a thread, and save to have returned")
    refuse(not soon(lambda: disk.ended), "save has returned, and write is not called in a thread of this process")
    disk.error = None
    told = _heard(saver.wait if by == "wait" else lambda: saver.save(state, str(folder / "next.pt")))
    refuse(not told, f"{what} the next {by}() says nothing: whatever the thread catches, the next call raises")
    fault = f"{what} the next {by}() raises something else: raise that very exception"
    refuse(told is not error, fault, measured=repr(told), expected=repr(error))
    again, files = _heard(saver.wait), _files(folder)
    refuse(disk.begun > 1, f"{what} the save() that tells of it begins to write: it is to begin nothing")
    lost = files.get(path.name) != before.get(path.name)
    refuse(lost, f"{what} the final name has another file than before: what is half written is no checkpoint")
    fault = f"{what} the half-written file stays and takes up room: remove it"
    refuse(files != before, fault, measured=", ".join(sorted(files.keys() - before.keys())))
    later = [again, _heard(lambda: saver.save(state, str(path))), _heard(saver.wait)]
    refuse(error in later, f"{what} it comes out a second time: whoever has heard it saves on")
    fault = f"{what} when that was told, saving does not work any more"
    refuse([*filter(None, later)], fault, measured=repr([*filter(None, later)]))
    refuse(not path.exists() or not same(torch.load(path), state), f"{fault}: the next file is missing or another")


def _files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def _heard(call: Callable[[], Any]) -> BaseException | None:
    """What it raises."""
    try:
        call()
    except BaseException as error:
        return error
    return None
