"""Check of ``save``: killed before each of its steps with files and at many bytes, on full disks, and its order."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from checks.engine import Reference, leaves, refuse, same
from checks.engine.inside import Outcome
from checks.labs.checkpointing.killing import Life, Notes, Steps, limit, live

OFFICIAL = Reference("checkpointing", "save")
CASES = [{"name": "last.pt", "numbers": 4000, "bytes": 10}, {"name": "a checkpoint", "numbers": 300, "bytes": 3}]
MINE = "notes.txt", "other.pt", "other.pt.tmp", "last.pt.txt", ".hidden"  # files of somebody else
ELSEWHERE = "the temporary file is in another folder, maybe on another disk: no rename can come from there"
KILLS = 4  # that leave half a file, and then one whole save


def state_of(case: dict[str, Any], step: int) -> dict[str, Any]:
    weights = torch.full((case["numbers"], 2), float(step))
    return {"step": step, "model": {"w": weights[:, 0], "none": torch.empty(0, 3)}, "rates": [0.1, (step, None)]}


class Room:
    """A folder with an old checkpoint and files of somebody else, in which lives save a new state."""

    def __init__(self, case: dict[str, Any], save: Any, old: bool = True) -> None:
        self.case, self.save, self.place = case, save, tempfile.TemporaryDirectory(prefix="check-")
        self.folder = Path(self.place.name).resolve() / "run.pt-1"
        self.folder.mkdir()
        self.path = self.folder / case["name"]
        for name in MINE:
            (self.folder / name).write_text("mine")
        if old:
            torch.save(state_of(case, 10), self.path)

    def life(self, *, kill: int = -1, size: int = 0, full: int = -1, fails: str = "", here: Path | None = None,
             extra: Any = None) -> Life:  # fmt: skip
        """Killed before step ``kill`` or at byte ``size``; the disk is full at a byte, or at an fsync."""

        def body(note: Notes) -> None:
            os.chdir(here or self.place.name)
            note("folder", inode=os.stat(self.folder).st_ino)
            steps = Steps(note, str(self.path), fails)
            save, steps.left = steps.seen(self.save), kill
            if size or full >= 0:
                limit(max(size, full), fatal=bool(size))
            state, path = state_of(self.case, 20), os.path.relpath(self.path, here) if here else str(self.path)
            before = len(os.listdir("/dev/fd"))
            try:
                save(state if extra is None else state | {"extra": extra}, path)
            except Outcome as error:
                error.__cause__ = error.__context__ = error.__traceback__ = None  # its frames keep files open
                note("failure", open=len(os.listdir("/dev/fd")) > before)
                raise

        return live(body)[0]

    def holds(self) -> str:
        if not self.path.exists():
            return "nothing: there is no checkpoint any more"
        try:
            step = torch.load(self.path)["step"]
        except Exception:
            return "half a file"
        return {10: "old", 20: "new"}[step]

    def others(self) -> list[str]:
        return sorted({one.name for one in self.folder.iterdir()} - {self.case["name"], *MINE})

    def clean(self) -> None:
        refuse(len(os.listdir(self.place.name)) > 1, ELSEWHERE)
        kept = all((self.folder / name).exists() and (self.folder / name).read_text() == "mine" for name in MINE)
        refuse(not kept, "files of somebody else in the folder are gone or changed: touch only your own")


def play(case: dict[str, Any], save: Any) -> dict[str, Any]:
    room = Room(case, save, old=False)
    for step in (20, 10):
        state, before = state_of(case, step), len(os.listdir("/dev/fd"))
        with leaves(state=state):
            save(state, str(room.path))
        refuse(not room.path.exists(), "after a save, there is no file under the name that was given")
        refuse(room.holds() == "half a file", "after a save, torch.load cannot read the file")
        refuse(not same(torch.load(room.path), state), f"torch.load does not give the state of step {step} back")
        refuse(len(os.listdir("/dev/fd")) > before, "a file or folder stays open after the save: close what you open")
    words = "a whole save leaves more than the checkpoint in the folder"
    refuse(room.others(), words, measured=", ".join(room.others()))
    room.clean()
    for how in ("", "with a name without a folder, like last.pt", "with a path from the current folder on"):
        room, where = Room(case, save), f" ({how})" * bool(how)
        old, here = os.stat(room.path).st_ino, {"with a n": room.folder, "with a p": room.folder.parent}.get(how[:8])
        life = room.life(here=here)
        life.raise_failure(f"{how}: " * bool(how))
        refuse(room.holds() != "new", f"the file is not the new checkpoint{where}", measured=room.holds())
        opened = [note["at"] for note in life.of("files") if note["name"] == "open" and os.path.isabs(note["at"])]
        outside = [one for one in opened if not f"{os.path.realpath(one)}/".startswith(f"{room.folder}/")]
        refuse(outside, ELSEWHERE, measured=outside and outside[0])
        if here:
            half = Room(case, save)
            half.life(size=100, here=half.folder if here == room.folder else half.folder.parent)
            half.clean()
        if not how:
            _killed(case, save, os.stat(room.path).st_size)
        _in_order(life, os.stat(room.path), old, where)
    _full(case, save, os.stat(room.path).st_size)
    _litter(case, save, os.stat(room.path).st_size)
    return {"kills": f"at {case['bytes']} bytes and before each step with files, each time old or new"}


def _killed(case: dict[str, Any], save: Any, size: int) -> None:
    for byte in [1, size - 1, *(size * n // case["bytes"] for n in range(1, case["bytes"] - 1))]:
        for old in (True, False) if byte == size // case["bytes"] else (True,):
            room = Room(case, save, old=old)
            room.life(size=byte)
            held = room.holds()
            words = f"after a kill at byte {byte:,}, the file under the final name is {held}: write under another name"
            refuse(held == "half a file", words)
            words = f"after a kill at byte {byte:,} the old checkpoint is lost: it may go only when the new one comes"
            refuse(old and held.startswith("nothing"), words, measured=held)
            room.clean()
    for step in itertools.count():
        room = Room(case, save)
        life = room.life(kill=step)
        if not life.killed:
            return
        at = [note["name"] for note in life.of("files")] or ["nothing"]
        words = f"killed after its step {step} with files ({at[-1]}), the old one went before the new came: os.replace"
        refuse(room.holds() not in ("old", "new"), f"{words} puts one in the place of the other", measured=room.holds())


def _in_order(life: Life, file: os.stat_result, old: int, where: str) -> None:
    """The bytes are on the disk before they have the name, and then the name is."""
    words = "the new bytes are copied into the old file, and a copy can be killed half done: os.replace a whole file"
    refuse(file.st_ino == old, words)
    syncs = [note for note in life.of("files") if note["name"] == "fsync"]
    mine = [note for note in syncs if note.get("inode") == file.st_ino or note["kind"] == "all"]
    before = [note for note in mine if note["now"] != file.st_ino]
    words = "fsync of the file comes after the rename: a power cut between them leaves the name without the bytes"
    refuse(mine and not before and mine[0]["kind"] == "file", words + where)
    refuse(not before, f"the bytes are not synced before they have the name: fsync the file that is renamed{where}")
    whole = any(note["kind"] == "all" or note["size"] == file.st_size for note in before)
    words = f"fsync comes before the last bytes are written: write, flush, fsync{where}"
    refuse(not whole, words, measured=f"{before[-1].get('size')} bytes", expected=file.st_size)
    folders = [note for note in syncs if note["kind"] == "folder"]
    after = [note for note in syncs if note["now"] == file.st_ino and note["kind"] != "file"]
    mine = [one for one in after if one["kind"] == "all" or one["inode"] == life.of("folder")[0]["inode"]]
    words = f"the folder is synced before the rename: the new name is not on the disk then{where}"
    refuse(folders and not after, words)
    refuse(not mine, f"the folder of the checkpoint is not synced after the rename: a power cut loses the name{where}")


def _full(case: dict[str, Any], save: Any, size: int) -> None:
    faults = [{"full": byte} for byte in (0, size // 2, size - 1)] + [{"fails": "file"}, {"extra": lambda: None}]
    for fault in [*faults, {"fails": "folder"}]:
        at = f" at byte {fault['full']:,}" if "full" in fault else f" at the {fault.get('fails')}'s fsync"
        what = "something that cannot be pickled" if "extra" in fault else f"a disk that is full{at}"
        room = Room(case, save)
        life = room.life(**fault)  # type: ignore[arg-type]
        missed = not life.failure and ("fails" not in fault or life.of("fails"))
        refuse(missed, f"with {what}, save returns as if all were well: let the error out")
        if life.failure and fault != {"fails": "folder"}:
            refuse(room.holds() != "old", f"with {what}, the old checkpoint is lost", measured=room.holds())
        words = f"with {what}, the half-written file stays and takes up room: remove it before the error goes on"
        refuse(room.others(), words, measured=", ".join(room.others()))
        words = f"with {what}, a file or folder stays open: close what you open after an error, too"
        refuse(
            fault == {"fails": "file"} and any(note["open"] for note in life.of("failure")), words
        )  # (torch keeps its own)
        room.clean()


def _litter(case: dict[str, Any], save: Any, size: int) -> None:
    room = Room(case, save)
    for number in range(KILLS - 1):
        room.life(size=size // (number + 2))
    room.life(size=2 * size, extra=torch.ones(size))  # what this kill leaves is longer than what comes
    room.life().raise_failure("after a kill has left half a file: ")
    words = "after a kill has left a longer half, the next save does not empty it first, as open(…, 'wb') does"
    longer = os.stat(room.path).st_size > size + 1_000
    refuse(room.holds() != "new" or longer, words, measured="longer than it should be" if longer else room.holds())
    words = f"after {KILLS} kills and one whole save, half-written files are left: take the same name each time"
    refuse(room.others(), words, measured=", ".join(room.others()))
    room.clean()
