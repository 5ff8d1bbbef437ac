"""The atomic save: killed at every step with files and at many bytes, on full disks; what is left then."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from utils.checks.checkpointing.lives import FAILED, Life, Watch, first_failure, live, raise_failure, refuse_the_lecture
from utils.checks.verdicts import Wrong

NAME, NEIGHBOUR = "last.pt", "notes.txt"
BYTES, LITTER = 10, 4  # kills at random bytes, and kills in a row in one folder


def _state(step: int) -> dict[str, Any]:
    import torch

    return {"step": step, "model": {"w": torch.full((4000,), float(step)), "b": torch.arange(33) + step}}


def _look(path: Path, states: dict[str, Any]) -> str:
    """Which state the file holds: a name, "nothing" or "half"."""
    import torch

    if not path.exists():
        return "nothing"
    try:
        found = torch.load(path)
        for name, state in states.items():
            same = found["step"] == state["step"] and found["model"].keys() == state["model"].keys()
            if same and all(torch.equal(found["model"][key], state["model"][key]) for key in state["model"]):
                return name
        return "something else"
    except Exception:
        return "half"


class _Room:
    """A fresh folder with an old checkpoint and a file of somebody else."""

    def __init__(self, root: str, save: Any, old: bool = True) -> None:
        import torch

        self.folder = Path(tempfile.mkdtemp(dir=root))
        self.path, self.save = self.folder / NAME, save
        self.states = {"old": _state(10), "new": _state(20)}
        (self.folder / NEIGHBOUR).write_text("mine")
        if old:
            torch.save(self.states["old"], self.path)

    def life(self, events: int | None = None, size: int | None = None, fatal: bool = True, bare: bool = False) -> Life:
        def body(watch: Watch) -> None:
            if bare:
                os.chdir(self.folder)
            watch.files(self.save)
            if size is not None:
                watch.limit(size, fatal)
            if events is not None:
                watch.kill_before(events)
            self.save(self.states["new"], NAME if bare else str(self.path))

        return live(body)[0]

    def holds(self) -> dict[str, Any]:
        others = sorted(path.name for path in self.folder.iterdir() if path.name != NAME)
        return {"file": _look(self.path, self.states), "others": [name for name in others if name != NEIGHBOUR]} | {
            "neighbour": NEIGHBOUR in others
        }


def saving(save: Any) -> dict[str, Any]:
    """Call the answer in many processes that are killed; what each did and left behind."""
    import torch

    torch.set_num_threads(1)
    refuse_the_lecture()
    root = tempfile.mkdtemp(prefix="check-")
    tempfile.tempdir = root  # what an answer leaves in the system's own folder goes with this one
    try:
        first = _Room(root, save, old=False)
        found: dict[str, Any] = {"first": _told(first.life(), first)}
        if found["first"]["ended"] != 0:
            return found
        room = _Room(root, save)
        whole = room.life()
        found["whole"] = _told(whole, room) | {"notes": whole.notes, "folder": str(room.folder)}
        found["ino of the folder"] = os.stat(room.folder).st_ino
        size = room.path.stat().st_size if room.path.exists() else 1000
        found["size"] = size
        chance = random.Random(8)
        bytes_at = [0, 1, size - 1, *(chance.randrange(size) for _ in range(BYTES - 3))]
        found["kills"] = []
        for events in range(len(whole.notes)):
            room = _Room(root, save)
            where = f"before its step {events + 1} with files ({_name(whole.notes[events])})"
            found["kills"].append(_told(room.life(events=events), room) | {"where": where})
        for byte in bytes_at:
            room = _Room(root, save)
            found["kills"].append(_told(room.life(size=byte), room) | {"where": f"at byte {byte:,}"})
        found["full"] = []
        for byte in (0, size // 2, size - 1):
            room = _Room(root, save)
            found["full"].append(_told(room.life(size=byte, fatal=False), room) | {"byte": byte})
        room = _Room(root, save)
        found["bare"] = _told(room.life(bare=True), room)
        room = _Room(root, save)
        for number in range(LITTER):
            room.life(size=size // (number + 2))
        found["litter"] = _told(room.life(), room)
        return found
    finally:
        shutil.rmtree(root)


def _name(note: dict[str, Any]) -> str:
    return note["what"] + (" of the folder" if note.get("folder") else "")


def _told(life: Life, room: _Room) -> dict[str, Any]:
    return {"ended": life.ended, "failed": first_failure([life]), **room.holds()}


# --- judging ---------------------------------------------------------------------------------------------------


def judge_saving(found: dict[str, Any]) -> dict[str, Any]:
    """Old or new, at every moment; on the disk before it has its name; nothing left behind."""
    for part in ("first", "whole"):
        facts = found[part]
        if facts["failed"]:
            raise_failure(facts["failed"])
        if facts["ended"] is None:
            raise Wrong("save never ends.")
        if facts["file"] != "new":
            raise Wrong(
                "after a save, torch.load(path) does not give the state back", measured=facts["file"], expected="new"
            )
        if not facts["neighbour"]:
            raise Wrong("save removes files of somebody else from the folder.")
    _judge_order(found)
    for kill in found["kills"]:
        if kill["file"] in ("old", "new"):
            continue
        if kill["file"] == "nothing":
            raise Wrong(
                f"killed {kill['where']}, there is no file under the name: the old one went before the new came."
            )
        raise Wrong(
            f"killed {kill['where']}, the file under the final name is half a file, and the old one is gone: write to "
            "another name first"
        )
    _judge_writers(found)
    for full in found["full"]:
        where = f"a disk that is full at byte {full['byte']:,}"
        if full["ended"] == 0 and full["file"] != "new":
            raise Wrong(f"on {where} save returns as if all were well: let the error out.")
        if full["ended"] != FAILED:
            raise Wrong(f"on {where} save does not raise", measured=f"ended with {full['ended']}", expected="an error")
        if full["file"] != "old":
            raise Wrong(f"on {where} the old checkpoint is lost", measured=full["file"], expected="old")
        if full["others"]:
            raise Wrong(
                f"on {where} the half-written file stays and takes the room",
                measured=", ".join(full["others"]),
                expected="nothing",
            )
    bare = found["bare"]
    if bare["ended"] != 0 or bare["file"] != "new":
        why = f" ({bare['failed']['sentence']})" if bare["failed"] else ""
        raise Wrong(
            f'save(state, "{NAME}"), a name without a folder, fails: os.path.dirname gives "" for it, and that is no '
            f"folder{why}",
            measured=f"ended with {bare['ended']}, the file is {bare['file']}",
            expected="the new state in this folder",
        )
    if found["litter"]["others"]:
        raise Wrong(
            f"after {LITTER} kills and a whole save, half-written files are left: each kill leaves one more",
            measured=f"{len(found['litter']['others'])} files",
            expected="0",
        )
    return {
        "kills": f"{len(found['kills'])}, each time the old or the new checkpoint",
        "full disks": f"{len(found['full'])}, old one untouched",
        f"files left after {LITTER} kills": 0,
    }


def _judge_writers(found: dict[str, Any]) -> None:
    """A copy onto the final name may be too quick to be caught half done; it opens that name for writing."""
    final = os.path.join(found["whole"]["folder"], NAME)
    if any(note["what"] == "open" and note["path"] == final for note in found["whole"]["notes"]):
        raise Wrong("save writes to the final name itself: a copy can be killed half done, a rename cannot.")


def _judge_order(found: dict[str, Any]) -> None:
    """Data to the disk, then the name, then the folder."""
    notes, folder = found["whole"]["notes"], found["whole"]["folder"]
    final = os.path.join(folder, NAME)
    renames = [index for index, note in enumerate(notes) if note["what"] == "rename" and note["target"] == final]
    away = [note["path"] for note in notes if note["what"] == "open" and os.path.dirname(note["path"]) != folder]
    if away or any(os.path.dirname(notes[index]["source"]) != folder for index in renames):
        raise Wrong(
            "the temporary file is in another folder: that may be another file system, where a rename is a slow copy",
            measured=os.path.dirname((away or [notes[renames[-1]]["source"]])[0]),
            expected="the folder of the checkpoint",
        )
    if not renames:
        return  # the kills show what that means
    rename = notes[renames[-1]]
    synced = [note for note in notes[: renames[-1]] if note["what"] == "fsync" and note["ino"] == rename["ino"]]
    later = [note for note in notes[renames[-1] :] if note["what"] == "fsync" and note["ino"] == rename["ino"]]
    if not synced and later:
        raise Wrong("the fsync of the file comes after the rename: a power cut may leave the name without the bytes.")
    if not synced:
        raise Wrong("the bytes are not synced: without fsync before the rename, a power cut may leave an empty file.")
    if synced[-1]["size"] < rename["size"]:
        raise Wrong(
            "fsync comes before the last bytes: Python still holds them, flush first",
            measured=f"{synced[-1]['size']:,} bytes synced",
            expected=f"{rename['size']:,}",
        )
    folders = [index for index, note in enumerate(notes) if note["what"] == "fsync" and note["folder"]]
    folders = [index for index in folders if notes[index]["ino"] == found["ino of the folder"]]
    if not folders:
        raise Wrong("the folder is not synced: the new name may be lost in a power cut.")
    if folders[-1] < renames[-1]:
        raise Wrong("the folder is synced before the rename: the new name is not in it yet.")
