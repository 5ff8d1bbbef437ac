"""Check of ``save``: killed before each of its steps with files and at many bytes, on full disks, and its order."""

from __future__ import annotations

import itertools
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.processes import run
from checks.labs.checkpointing.killing import Life, Notes, die, limit, live, overheard, raise_first

OFFICIAL = Reference("checkpointing", "save")
CASES = [
    {"name": "last.pt", "numbers": 4000, "bytes": 10, "how": ""},
    {"name": "a checkpoint", "numbers": 300, "bytes": 3, "how": "with a path from the current folder on: "},
    {"name": "last.pt", "numbers": 300, "bytes": 3, "how": "with a name without a folder, like last.pt: "},
]
THEIRS = "notes.txt", "other.pt.tmp", "last.pt.txt", ".hidden"
EVERYTHING = 0  # no inode: what os.sync brings to the disk
ELSEWHERE = "the temporary file is in another folder, maybe on another disk: no rename can come from there"


@exercise(title="A save that survives", difficulty=1, minutes=20, official=OFFICIAL)
def saving(save: Any) -> dict[str, Any]:
    """Judge ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""
    for case in CASES:
        run(play, case, save, timeout=90)
    return {"kills": f"at {CASES[0]['bytes']} bytes and before each step with files, each time old or new"}


class Room:
    """A folder with an old checkpoint and files of somebody else, in which lives save a new state."""

    def __init__(self, case: dict[str, Any], save: Any, old: bool = True) -> None:
        self.case, self.save, self.place = case, save, tempfile.TemporaryDirectory(prefix="check-")
        self.folder = Path(self.place.name).resolve() / "run.pt-1"
        self.folder.mkdir()
        self.path = self.folder / case["name"]
        for name in THEIRS:
            (self.folder / name).write_text("theirs")
        if old:
            torch.save(self.state(10), self.path)

    def state(self, step: int) -> dict[str, Any]:
        weights = torch.full((self.case["numbers"], 2), float(step))
        return {"step": step, "model": {"w": weights[:, 0], "none": torch.empty(0, 3)}, "rates": [0.1, (step, None)]}

    def life(self, kill: int = -1, size: int = 0, full: int = -1, fails: bool = False, extra: Any = None) -> Life:
        """Killed before step ``kill`` or at byte ``size``; the disk is full at a byte, or at the first fsync."""

        def body(note: Notes) -> None:
            left, failing = kill, fails

            def hear(event: str, given: Any) -> None:
                nonlocal left, failing
                if event == "open" and not str(given).startswith(str(self.folder.parent)) and os.path.isabs(str(given)):
                    return None  # (a module, /dev/null)
                if left == 0:
                    die()
                left -= 1
                file = os.fstat(given) if event == "fsync" and given is not None else None
                facts = {"inode": file.st_ino, "size": file.st_size} if file else {"at": str(given)}
                if event == "fsync" and given is None:
                    facts = {"inode": EVERYTHING, "size": sys.maxsize}
                note(event, now=os.stat(self.path).st_ino if self.path.exists() else 0, **facts)
                if failing and file and stat.S_ISREG(file.st_mode):
                    failing = False
                    raise OSError(28, "No space left on device")

            save = overheard(self.save, hear)
            os.chdir(self.folder if "without" in self.case["how"] else self.folder.parent)
            state = self.state(20) | ({} if extra is None else {"extra": extra})
            path = os.path.relpath(self.path) if self.case["how"] else str(self.path)
            if size or full >= 0:
                limit(max(size, full), fatal=bool(size))
            before = len(os.listdir("/dev/fd"))
            with leaves(state=state):
                save(state, path)
            words = "a file or folder stays open after the save: close what you open"
            refuse(len(os.listdir("/dev/fd")) > before, words)

        [life] = live(body)
        refuse(len(os.listdir(self.place.name)) > 1, ELSEWHERE)
        kept = all((self.folder / name).exists() for name in THEIRS)
        refuse(not kept, "files of somebody else in the folder are gone: touch only your own")
        return life

    def holds(self) -> str:
        """Which checkpoint has the name."""
        if not self.path.exists():
            return "nothing"
        try:
            loaded = torch.load(self.path)
        except Exception:
            return "half a file"
        states = {"old": self.state(10), "new": self.state(20)}
        return next((name for name, state in states.items() if same(loaded, state)), "another state")

    def others(self) -> str:
        return ", ".join(sorted({one.name for one in self.folder.iterdir()} - {self.case["name"], *THEIRS}))


def play(case: dict[str, Any], save: Any) -> None:
    room = Room(case, save)
    old = os.stat(room.path).st_ino
    life = room.life()
    raise_first([life], case["how"])
    refuse(room.holds() != "new", "torch.load does not give the state back", measured=room.holds())
    refuse(room.others(), "a whole save leaves more than the checkpoint in the folder", measured=room.others())
    size = os.stat(room.path).st_size
    _killed(case, save, size)
    _in_order(life, room, old)
    faults: list[dict[str, Any]] = [{"full": 0}, {"full": size // 2}, {"full": size - 1}, {"fails": True}]
    for fault in [*faults, {"extra": lambda: None}]:
        room = Room(case, save)
        life = room.life(**fault)
        what = "something that cannot be pickled" if "extra" in fault else "a disk that is full"
        refuse(not life.of("failed"), f"with {what}, save returns as if all were well: let the error out")
        refuse(room.holds() != "old", f"with {what}, the old checkpoint is lost", measured=room.holds())
        words = f"with {what}, the half-written file stays and takes up room: remove it before the error goes on"
        refuse(room.others(), words, measured=room.others())


def _in_order(life: Life, room: Room, old: int) -> None:
    """The bytes are on the disk before they have the name, and then the name is."""
    file, folder, syncs = os.stat(room.path), os.stat(room.folder).st_ino, life.of("fsync")
    words = "the new bytes are copied into the old file, and a copy can be killed half done: os.replace a whole file"
    refuse(file.st_ino == old, words)
    paths = [Path(os.path.realpath(note["at"])) for note in life.of("os.rename") if os.path.isabs(note["at"])]
    refuse(any(room.folder not in path.parents for path in paths), ELSEWHERE)
    mine = [note for note in syncs if note["inode"] in (file.st_ino, EVERYTHING)]
    before = [note for note in mine if note["now"] != file.st_ino]
    words = "fsync of the file comes after the rename: a power cut between them leaves the name without the bytes"
    refuse(mine and not before, words)
    refuse(not before, "the bytes are not synced before they have the name: fsync the file that is renamed")
    words = "fsync comes before the last bytes are written: write, flush, fsync"
    refuse(before[-1]["size"] < file.st_size, words, measured=f"{before[-1]['size']} bytes", expected=file.st_size)
    after = [note["now"] == file.st_ino for note in syncs if note["inode"] in (folder, EVERYTHING)]
    refuse(not after, "the folder of the checkpoint is not synced after the rename: a power cut loses the name")
    refuse(not any(after), "the folder is synced before the rename: the new name is not on the disk then")


def _killed(case: dict[str, Any], save: Any, size: int) -> None:
    room, empty = Room(case, save), Room(case, save, old=False)
    empty.life(size=size // 2)
    refuse(empty.holds() != "nothing", "after a kill, half a file is under the final name: write under another name")
    for byte in [1, size - 1, *(size * n // case["bytes"] for n in range(1, case["bytes"] - 1))]:
        room.life(size=byte)
        words = f"after a kill at byte {byte:,}, the old checkpoint is lost: write under another name"
        refuse(room.holds() != "old", words, measured=room.holds())
    raise_first([room.life()], "after a kill has left half a file: ")
    words = f"after {case['bytes']} kills and one whole save, half-written files are left: take the same name each time"
    refuse(room.others(), words, measured=room.others())
    for step in itertools.count():
        room = Room(case, save)
        life = room.life(kill=step)
        if life.ended >= 0:
            return
        words = f"killed before its step {step + 1} with files, the old one went before the new came: os.replace puts "
        refuse(room.holds() not in ("old", "new"), f"{words}one in the place of the other", measured=room.holds())
