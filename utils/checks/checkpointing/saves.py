"""Exercise 1: ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from utils.checks.checkpointing.lives import FAILED, Life, Watch, first_failure, live
from utils.checks.contracts import Broken, Case, Contract, Facts, Rules
from utils.checks.verdicts import NotStarted

NEIGHBOURS = ("notes.txt", "other.pt", "thesis.tmp", ".hidden")  # of somebody else
STEPS = {"old": 10, "new": 20}
LITTER = 4  # kills in a row in one folder
NAMES = ("model.ckpt", "a checkpoint.pt", "best", "step-20.pt", "x.tmp.pt")
ERRORS = {one.__name__: one for one in (ValueError, KeyboardInterrupt, MemoryError, SystemExit)}
Notes = Sequence[dict[str, Any]]


def draw(rng: random.Random) -> list[Case]:
    """The first one as the lab's text says it; then other names and sizes."""
    cases = [{"name": "last.pt", "numbers": 4000, "kills": "all", "bytes": 10}]
    cases += [{"name": rng.choice(NAMES), "numbers": rng.choice((1, 300, 9000)), "kills": "some", "bytes": 2}]
    errors = rng.sample(sorted(ERRORS), 2)
    return [{"ranks": 1} | c | {"error": e, "seed": rng.getrandbits(30)} for c, e in zip(cases, errors, strict=True)]


def state_of(case: Case, step: int) -> dict[str, Any]:
    """What is saved: tensors of several types, one of them strided, one empty, two that share their memory."""
    import torch

    wide = torch.full((case["numbers"], 2), float(step))
    model = {"w": wide[:, 1], "tied": wide[:, 1], "b": torch.arange(33) + step, "none": torch.empty(0, 3)}
    return {"step": step, "model": model, "rates": [0.1, (step, None)], "types": {"half": wide[:3].bfloat16() / 3}}


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


class _Raises:
    """Something that cannot be pickled."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error("this part cannot be saved")


class Room:
    """A fresh folder with an old checkpoint, and with files of somebody else."""

    def __init__(self, case: Case, save: Any, old: bool = True) -> None:
        import torch

        self.case, self.save = case, save
        self.folder = Path(tempfile.mkdtemp(dir=os.getcwd()))
        self.path = self.folder / case["name"]
        self.states = {name: state_of(case, step) for name, step in STEPS.items()}
        for name in NEIGHBOURS:
            (self.folder / name).write_text("mine")
        if old:
            torch.save(self.states["old"], self.path)

    def life(self, bare: bool = False, **how: Any) -> Life:
        """A process that saves. ``events``, ``size``: where it is killed; ``full``: at which byte the disk is full."""

        def body(watch: Watch) -> None:
            import torch

            torch.set_num_threads(1)
            if bare:
                os.chdir(self.folder)
            watch.files(self.save, str(self.folder))
            if (size := how.get("size", how.get("full"))) is not None:
                watch.limit(size, fatal="size" in how)
            if how.get("events") is not None:
                watch.kill_before(how["events"])
            watch.broken_sync = how.get("broken sync", False)
            state = self.states["new"] | ({"part": _Raises(how["error"])} if "error" in how else {})
            try:
                self.save(state, self.case["name"] if bare else str(self.path))
            finally:
                watch.names()

        return live(body)[0]

    def holds(self) -> Facts:
        names = {path.name for path in self.folder.iterdir()}
        others = sorted(names - {self.case["name"], *NEIGHBOURS})
        mine = all((self.folder / name).exists() and (self.folder / name).read_text() == "mine" for name in NEIGHBOURS)
        return {"file": self._look(), "others": others, "neighbours": mine}

    def _look(self) -> str:
        """Which state the file holds: a name, "nothing" or "half"."""
        import torch

        if not self.path.exists():
            return "nothing"
        try:
            found = torch.load(self.path)
        except Exception:
            return "half"
        states = {name: state_of(self.case, step) for name, step in STEPS.items()}  # (the answer had the others)
        return next((name for name, state in states.items() if _same(state, found)), "something else")


def scene(case: Case, watch: Any, facts: Facts) -> None:
    save, dice = watch.answers["save"], random.Random(case["seed"])
    first = Room(case, save, old=False)
    watch.call("save", state=first.states["new"], path=str(first.path))
    facts["first"] = {"ended": 0, "failed": None} | first.holds()
    watch.call("save", state=first.states["old"], path=str(first.path))
    facts["again"] = first.holds()["file"]

    def told(where: str, old: bool = True, **how: Any) -> Facts:
        room = Room(case, save, old)
        return _told(room.life(**how), room) | {"where": where}

    room = Room(case, save)
    whole = room.life()
    facts["whole"] = _told(whole, room) | {"notes": whole.notes, "folder": os.path.realpath(room.folder)}
    facts["inode of the folder"] = os.stat(room.folder).st_ino
    found = os.stat(room.path) if room.path.exists() else None
    facts["inode"], facts["size"] = (found.st_ino, found.st_size) if found else (0, 1000)
    steps = [note for note in whole.notes if note["what"] not in ("entry", "failed")]
    chosen = range(len(steps)) if case["kills"] == "all" else dice.sample(range(len(steps)), min(2, len(steps)))
    facts["kills"] = [told(f"before its step {n + 1} with files ({_name(steps[n])})", events=n) for n in chosen]
    size = facts["size"]
    bytes_at = [0, 1, size - 1, *(dice.randrange(size) for _ in range(case["bytes"] - 3))][: case["bytes"]]
    facts["kills"] += [told(f"at byte {byte:,}", size=byte) for byte in bytes_at]
    facts["full"] = [told(f"a disk that is full at byte {b:,}", full=b) for b in (0, size // 2, size - 1)]
    facts["sync"] = told("a disk that turns out to be full at fsync", **{"broken sync": True})
    facts["errors"] = told(case["error"], error=ERRORS[case["error"]])
    facts["bare"] = told("", bare=True)
    room = Room(case, save)
    for number in range(LITTER):
        room.life(size=size // (number + 2))
    facts["litter"] = _told(room.life(), room)


def _name(note: dict[str, Any]) -> str:
    return note["what"] + (" of the folder" if note.get("folder") else "")


def _told(life: Life, room: Room) -> Facts:
    return {"ended": life.ended, "failed": first_failure([life]), **room.holds()}


# --- judging ---------------------------------------------------------------------------------------------------


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """Old or new, at every moment; on the disk before it has its name; nothing left behind. What is not so first."""
    facts = world[0]
    judged = (_whole, _order, _killed, _writers, _full, _errors, _bare, _litter)
    with contextlib.suppress(KeyError):
        for one in judged:
            if broken := one(case, facts):
                yield broken
                return


def _whole(case: Case, facts: Facts) -> Broken | None:
    for found in (facts["first"], facts["whole"]):
        if found["failed"]:
            if found["failed"]["kind"] == "not started":
                raise NotStarted
            return Broken("value:raised", found["failed"]["sentence"].rstrip("."))
        if found["ended"] is None:
            return Broken("value:ends", "save never ends")
        if found["file"] != "new":
            words = "after a save, torch.load(path) does not give the state back"
            return Broken("value:state", words, found["file"], "new")
        if not found["neighbours"]:
            return Broken("value:neighbours", "save removes or changes files of somebody else in the folder")
    if facts["again"] != "old":
        words = "a second save, of another state, does not give that state back"
        return Broken("value:again", words, facts["again"], "that state")
    return None


def _entries(facts: Facts) -> list[tuple[int, dict[str, Any]]]:
    return [(place, note) for place, note in enumerate(facts["whole"]["notes"]) if note["what"] == "entry"]


def _order(case: Case, facts: Facts) -> Broken | None:
    """Data to the disk, then the name, then the folder."""
    notes, folder = facts["whole"]["notes"], facts["whole"]["folder"]
    moved = [(place, note["cookie"]) for place, note in _entries(facts)
             if note["event"] == "moved to" and note["name"] == case["name"]]  # fmt: skip
    renames = [note for note in notes if note["what"] == "rename" and note["target"].endswith(f"/{case['name']}")]
    from_here = {note["cookie"]: note["name"] for _, note in _entries(facts) if note["event"] == "moved from"}
    opened = [note["path"] for note in notes if note["what"] == "open" and os.path.isabs(note["path"])]
    away = [path for path in opened if not f"{os.path.realpath(os.path.dirname(path))}/".startswith(f"{folder}/")]
    if moved and moved[-1][1] not in from_here:
        away += [note["source"] for note in renames if not os.path.realpath(note["source"]).startswith(f"{folder}/")]
    if away:
        words = (
            "the temporary file is in another folder: that may be another file system, where a rename is a slow copy"
        )
        return Broken("value:away", words, os.path.dirname(away[0]), "the folder of the checkpoint")
    if not moved:
        return None  # the kills show what that means
    at, cookie = moved[-1]
    synced = list(_synced(facts, notes[:at], from_here.get(cookie, "")))
    if not synced:
        if list(_synced(facts, notes[at:], "")):
            words = "the fsync of the file comes after the rename: a power cut may leave the name without the bytes"
        else:
            words = "the bytes are not synced: without fsync before the rename, a power cut may leave an empty file"
        return Broken("value:synced", words)
    if max(synced) < facts["size"]:
        words = "fsync comes before the last bytes: Python still holds them, flush first"
        return Broken("value:flushed", words, f"{max(synced):,} bytes synced", f"{facts['size']:,}")
    ours = facts["inode of the folder"]
    places = [p for p, n in enumerate(notes) if n["what"] == "sync" or (n["what"] == "fsync" and n["ino"] == ours)]
    if not places:
        return Broken("value:folder", "the folder is not synced: the new name may be lost in a power cut")
    if places[-1] < at:
        return Broken("value:folder", "the folder is synced before the rename: the new name is not in it yet")
    return None


def _synced(facts: Facts, notes: Notes, name: str) -> Iterator[int]:
    """How many bytes of the new file were on the disk, each time that somebody saw to it."""
    for note in notes:
        if note["what"] == "fsync" and note["ino"] == facts["inode"]:
            yield note["size"]
        elif note["what"] == "sync" and str(facts["inode"]) in note["sizes"]:
            yield note["sizes"][str(facts["inode"])]
        elif note["what"] == "open" and note["synced"] and os.path.basename(note["path"]) == name:
            yield facts["size"]  # O_SYNC: every write waits for the disk


def _killed(case: Case, facts: Facts) -> Broken | None:
    for kill in facts["kills"]:
        if kill["file"] == "nothing":
            words = f"killed {kill['where']}, there is no file under the name: the old one went before the new came"
            return Broken("value:nothing", words)
        if kill["file"] not in ("old", "new"):
            words = f"killed {kill['where']}, the file under the final name is half a file, and the old one is gone: "
            return Broken("value:half", f"{words}write to another name first")
    return None


def _writers(case: Case, facts: Facts) -> Broken | None:
    """What is too quick to be caught half done: the final name is written to, or is gone for a moment."""
    events = {note["event"] for _, note in _entries(facts) if note["name"] == case["name"]}
    if events & {"made", "changed", "closed after writing"}:
        words = "save writes to the final name itself: a copy can be killed half done, a rename cannot"
        return Broken("value:copied", words)
    if events & {"removed", "moved from"}:
        words = (
            "for a moment there is no file under the name: the old one went before the new came. os.replace does both"
        )
        return Broken("value:gone", words)
    return None


def _full(case: Case, facts: Facts) -> Broken | None:
    for full in [*facts["full"], facts["sync"]]:
        where, by_sync = f"on {full['where']}", full is facts["sync"]
        if by_sync and full["ended"] == 0 and full["file"] == "new" and not _uses_fsync(facts):
            continue
        if full["ended"] == 0:
            return Broken("value:swallowed", f"{where} save returns as if all were well: let the error out")
        if full["ended"] != FAILED:
            return Broken("value:swallowed", f"{where} save does not raise", f"ended with {full['ended']}", "an error")
        if full["file"] != "old":
            return Broken("value:lost", f"{where} the old checkpoint is lost", full["file"], "old")
        if full["others"] and not by_sync:
            words = f"{where} the half-written file stays and takes the room"
            return Broken("value:room", words, ", ".join(full["others"]), "nothing")
    return None


def _uses_fsync(facts: Facts) -> bool:
    return any(note["what"] == "fsync" and not note["folder"] for note in facts["whole"]["notes"])


def _errors(case: Case, facts: Facts) -> Broken | None:
    found = facts["errors"]
    if found["ended"] != FAILED:
        words = (
            f"a {found['where']} in the middle of a save does not come out: whoever called it believes that all is well"
        )
        return Broken("value:swallowed", words, f"ended with {found['ended']}", "an error")
    if found["file"] != "old":
        return Broken(
            "value:lost", f"after a {found['where']} in the middle the old checkpoint is lost", found["file"], "old"
        )
    return None


def _bare(case: Case, facts: Facts) -> Broken | None:
    bare = facts["bare"]
    if bare["ended"] == 0 and bare["file"] == "new":
        return None
    why = f" ({bare['failed']['sentence'][:150]})" if bare["failed"] else ""
    words = (
        f'save(state, "{case["name"]}"), a name without a folder, fails: os.path.dirname gives "" for it, and that is '
    )
    measured = f"ended with {bare['ended']}, the file is {bare['file']}"
    return Broken("value:bare", f"{words}no folder{why}", measured, "the new state in this folder")


def _litter(case: Case, facts: Facts) -> Broken | None:
    if left := len(facts["litter"]["others"]):
        words = f"after {LITTER} kills and a whole save, half-written files are left: each kill leaves one more"
        return Broken("value:litter", words, f"{left} files", "0")
    if not all(found["neighbours"] for found in (facts["litter"], facts["bare"], *facts["full"])):
        return Broken("value:neighbours", "save removes or changes files of somebody else in the folder")
    return None


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    found = [world[0] for _, world in played]
    return {
        "kills": f"{sum(len(facts['kills']) for facts in found)}, each time the old or the new checkpoint",
        "full disks": f"{sum(len(facts['full']) for facts in found)}, old one untouched",
        f"files left after {LITTER} kills": 0,
    }


CONTRACT = Contract(
    name="checkpointing.saving",
    rules={
        "save": Rules(changes=("around.the files in its folder",), allows=("starts:a process", "writes:*")),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:*", "{}"),
        ("value:*", "{}"),
    ),
    figures=figures,
)
