"""Check of ``save``: killed before each of its steps with files and at many bytes, on full disks, and its order."""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.processes import run
from checks.engine.verdicts import Wrong

Case = dict[str, Any]
OFFICIAL = Reference("checkpointing", "save")
CASES: list[Case] = [
    {"name": "last.pt", "numbers": 4000, "bytes": 10, "former": "old", "how": ""},
    {"name": "a file", "numbers": 300, "bytes": 3, "former": "none", "how": "with a path from the current folder on: "},
    {"name": "last.pt", "numbers": 300, "bytes": 3, "former": "old", "how": "with a name without a folder: "},
]
THEIRS = {"notes.txt", "other.pt.tmp", "last.pt.txt", ".hidden"}
EVENTS = "open", "os.rename", "os.remove", "os.mkdir", "fsync"
EVERYTHING = 0  # no inode: what os.sync brings to the disk
FULL, FAILS, ODD = "a disk that is full", "a disk that is full at fsync", "something that cannot be pickled"
Step = tuple[str, str, int, int, int]  # event, file, inode and size of what is synced; the inode that has the name


@exercise(title="A save that survives", difficulty=1, minutes=20, official=OFFICIAL)
def saving(save: Any) -> dict[str, Any]:
    """Judge ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""
    for case in CASES:
        try:
            with tempfile.TemporaryDirectory(prefix="check-") as place:
                _play(case, Path(place).resolve(), save)
        except Wrong as wrong:
            wrong.sentence = case["how"] + wrong.sentence
            raise
    return {"kills": f"at {CASES[0]['bytes']} bytes and before each step with files, each time old or new"}


def state_of(case: Case, step: int) -> dict[str, Any]:
    weights = torch.full((case["numbers"], 2), float(step))
    return {"step": step, "model": {"w": weights[:, 0], "none": torch.empty(0, 3)}, "rates": [0.1, (step, None)]}


def life(case: Case, folder: Path, sealed: bytes, kill: int = -1, size: int = -1, fault: str = "") -> list[Step]:
    """In a process: steps with files. Before step ``kill`` or at byte ``size`` it is killed, or the disk is full."""
    path, steps, real, everything = folder / case["name"], list[Step](), os.fsync, os.sync

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event not in EVENTS:
            return
        what = os.path.realpath(str(given[0]))
        if event == "open" and not what.startswith(str(folder.parent)):
            return  # a module, /dev/null
        if len(steps) == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        inode, length = given[1:3] if event == "fsync" else (-1, 0)
        steps.append((event, what, inode, length, path.stat().st_ino if path.exists() else -1))

    def fsync(file: Any) -> None:
        status = os.fstat(file if isinstance(file, int) else file.fileno())
        sys.audit("fsync", "", status.st_ino, status.st_size)
        if fault == FAILS and stat.S_ISREG(status.st_mode):
            raise OSError(28, "No space left on device")
        real(file)

    def sync() -> None:
        sys.audit("fsync", "", EVERYTHING, sys.maxsize)
        everything()

    for module in (os, sys.modules[os.name]):  # before the answer is opened: ``from os import fsync`` gives these
        module.fsync, module.fdatasync, module.sync = fsync, fsync, sync  # type: ignore[attr-defined]
    save = cloudpickle.loads(sealed)
    sys.addaudithook(hear)
    os.chdir(folder if "without" in case["how"] else folder.parent)
    state = state_of(case, 20) | ({"odd": lambda: None} if fault == ODD else {})
    opened = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN if fault else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        with leaves(state=state):
            save(state, os.path.relpath(path) if case["how"] else str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    refuse(len(os.listdir("/dev/fd")) > opened, "a file or folder stays open after the save: close what you open")
    return steps


def look(case: Case, folders: list[Path]) -> list[tuple[str, str]]:
    """In a process: which checkpoint has the name in each folder, and what is beside it."""
    found = []
    for folder in folders:
        try:
            loaded = torch.load(folder / case["name"])
            known = {"old": state_of(case, 10), "new": state_of(case, 20)}
            holds = next((name for name, state in known.items() if same(loaded, state)), "another state")
        except Exception as error:
            holds = "none" if isinstance(error, FileNotFoundError) else "half a file"
        names = {*os.listdir(folder)} - {case["name"]}
        refuse(not names >= THEIRS, "files of somebody else in the folder are gone: touch only your own")
        found.append((holds, ", ".join(sorted(names - THEIRS))))
    return found


def _play(case: Case, place: Path, save: Any) -> None:
    sealed, former = cloudpickle.dumps(save), case["former"]

    def room() -> Path:
        folder = Path(tempfile.mkdtemp(prefix="run.pt-", dir=place))
        for name in THEIRS:
            (folder / name).write_text("theirs")
        if former == "old":
            torch.save(state_of(case, 10), folder / case["name"])
        return folder

    def ended(folder: Path, *fate: Any) -> bool:
        try:
            return bool(run(life, case, folder, sealed, *fate, timeout=15))
        except Wrong:
            return False

    whole, killed = room(), room()
    path = whole / case["name"]
    old = path.stat().st_ino if path.exists() else -1
    steps, [(holds, others)] = run(life, case, whole, sealed, timeout=15), run(look, case, [whole])
    refuse(holds != "new", "torch.load does not give the state back", measured=holds)
    refuse(others, "a whole save leaves more than the checkpoint in the folder", measured=others)
    size, count = path.stat().st_size, case["bytes"]
    for byte in [1, size - 1, *(size * n // count for n in range(1, count - 1))]:
        ended(killed, -1, byte)
    fates = [*((kill, -1, "") for kill in range(len(steps))), (-1, -1, FAILS), (-1, -1, ODD)]
    fates += [(-1, byte, FULL) for byte in (0, size // 2, size - 1)]
    rooms = [room() for _ in fates]
    ends = [ended(folder, *fate) for folder, fate in zip(rooms, fates, strict=True)]
    [(holds, _), *found] = run(look, case, [killed, *rooms])
    words = f"killed at {count} bytes of the file, the final name lost what it held: write under another name"
    refuse(holds != former, words, measured=holds, expected=former)
    run(life, case, killed, sealed, timeout=15)
    [(_, others)] = run(look, case, [killed])
    refuse(others, f"{count} kills and one whole save leave half-written files: take the same name", measured=others)
    _in_order(steps, path, old)
    for (kill, _, fault), end, (holds, others) in zip(fates, ends, found, strict=True):
        words = f"killed before its step {kill + 1} with files, the old one went before the new came: os.replace it"
        refuse(holds not in (former, "new"), words, measured=holds)
        if fault:
            refuse(end, f"with {fault}, save returns as if all were well: let the error out")
            refuse(holds != former, f"with {fault}, the old checkpoint is lost", measured=holds)
            refuse(others, f"with {fault}, the half-written file stays: remove it, then raise", measured=others)


def _in_order(steps: list[Step], path: Path, old: int) -> None:
    """The bytes are on the disk before they have the name, and then the name is."""
    file, folder = path.stat(), path.parent.stat().st_ino
    refuse(file.st_ino == old, "the new bytes are copied into the old file, which a kill can halve: os.replace it")
    inside = all(path.parent in Path(what).parents for event, what, *_ in steps if event == "os.rename")
    refuse(not inside, "the temporary file is in another folder, maybe on another disk: no rename can come from there")
    order = []
    for event, _, inode, length, name in steps:
        what = {file.st_ino: "the file", folder: "the folder", EVERYTHING: "everything"}.get(inode, "another file")
        late = " before its last bytes" * (length < file.st_size and inode == file.st_ino)
        when = "after" if name == file.st_ino else "before"
        order += [f"fsync of {what}{late} {when} the rename"] if event == "fsync" else []
    shown = ", ".join(order) or "no fsync"
    safe = {"fsync of the file before the rename", "fsync of everything before the rename"} & {*order}
    refuse(not safe, "a power cut leaves the name without the bytes: fsync the file, then rename it", measured=shown)
    safe = {"fsync of the folder after the rename", "fsync of everything after the rename"} & {*order}
    refuse(not safe, "a power cut loses the name: fsync the folder of the checkpoint, after the rename", measured=shown)
