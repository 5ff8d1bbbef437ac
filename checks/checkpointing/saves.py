"""Exercise 1: ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks.checkpointing.lives import Life, Watch, first_failure, live
from checks.checkpointing.save_verdicts import LITTER, judge
from checks.contracts import Case, Contract, Facts, Rules
from checks.contracts.events import is_torchs_folder
from checks.contracts.snapshot import Snapshot
from checks.contracts.surroundings import changed, settled, surroundings

NEIGHBOURS = ("notes.txt", "other.pt", "other.pt.tmp", "thesis.tmp", ".hidden")  # of somebody else; and NAME.txt
STEPS = {"old": 10, "new": 20}
NAMES = ("model.ckpt", "a checkpoint", "best", "step-20.bin", "x.tmp")  # (the first one ends in .pt)
ERRORS = {one.__name__: one for one in (ValueError, TypeError, KeyboardInterrupt, MemoryError, SystemExit)}


def draw(rng: random.Random) -> list[Case]:
    """The first one as the lab's text says it; then other names and sizes."""
    cases = [{"name": "last.pt", "numbers": 4000, "kills": "all", "bytes": 10}]
    cases += [{"name": rng.choice(NAMES), "numbers": rng.choice((1, 300, 9000)), "kills": "some", "bytes": 2}]
    errors = list(ERRORS), rng.sample(list(ERRORS), 1)
    return [{"ranks": 1} | c | {"errors": e, "seed": rng.getrandbits(30)} for c, e in zip(cases, errors, strict=True)]


def state_of(case: Case, step: int) -> dict[str, Any]:
    """What is saved: tensors of several types, one of them strided, one empty, two that share their memory."""
    import torch

    # (Types by name: an answer may leave another default behind, and that shall be told, not that the file is wrong.)
    wide = torch.full((case["numbers"], 2), step, dtype=torch.float32)
    empty = torch.empty(0, 3, dtype=torch.float32)
    model = {"w": wide[:, 1], "tied": wide[:, 1], "b": torch.arange(33) + step, "none": empty}
    kinds = {"half": wide[:3].bfloat16() / 3, "asks for a gradient": wide[:3, 0].clone().requires_grad_()}
    return {"step": step, "model": model, "rates": [0.1, (step, None)], "types": kinds}


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        kinds = [(each.dtype, each.requires_grad) for each in (one, other) if isinstance(each, torch.Tensor)]
        return kinds == [kinds[0]] * 2 and torch.equal(one, other)
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

    def __init__(self, case: Case, save: Any, old: bool = True, by_save: bool = False) -> None:
        import torch

        self.case, self.save = case, save
        self.folder = Path(tempfile.mkdtemp(dir=os.getcwd(), prefix="run.pt-"))
        self.path, self.neighbours = self.folder / case["name"], (*NEIGHBOURS, f"{case['name']}.txt")
        self.states = {name: state_of(case, step) for name, step in STEPS.items()}
        for name in self.neighbours:
            (self.folder / name).write_text("mine")
        if old:  # (an answer that has saved under this name before must not be careless the second time)
            (save if by_save else torch.save)(self.states["old"], str(self.path))

    def life(self, here: Path | None = None, **how: Any) -> Life:
        """A process that saves, with the path from the folder ``here`` on if there is one.

        ``events``, ``size``: where it is killed; ``full``: at which byte the disk is full; ``large``: of another state,
        more numbers than in any other.
        """

        def body(watch: Watch) -> None:
            import torch

            torch.set_num_threads(1)
            if here:
                os.chdir(here)
            watch.files(self.save, str(self.folder))
            if (size := how.get("size", how.get("full"))) is not None:
                watch.limit(size, fatal="size" in how)
            if how.get("events") is not None:
                watch.kill_before(how["events"])
            watch.broken_sync = how.get("broken sync", "")
            state = self.states["new"] | ({"part": _Raises(how["error"])} if "error" in how else {})
            if how.get("large"):
                state["large"] = torch.ones(20_000)
            before, around = Snapshot({"state": state}), surroundings() | _umask()
            failure = None
            try:
                self.save(state, os.path.relpath(self.path, here) if here else str(self.path))
            except BaseException as error:
                watch.note("raised", kind=type(error.__cause__ or error).__name__)
                failure = error.with_traceback(None)  # (whose frames hold what goes by itself)
                failure.__cause__ = failure.__context__ = None
            watch.note("returned")
            watch.names()
            left = [name for name, *_ in changed(around, settled(around) | _umask())]
            left += ["`state`"] * bool(before.changes_to(Snapshot({"state": state})))
            left += ["the open files"] * bool(self.still_open() and gc.collect() >= 0 and self.still_open())
            watch.note("left", names=[name for name in left if name != "the files in its folder"])
            if failure:
                raise failure

        return live(body)[0]

    def holds(self) -> Facts:
        names = {path.name for path in self.folder.iterdir()}
        others = sorted(names - {self.case["name"], *self.neighbours})
        theirs = [self.folder / name for name in self.neighbours]
        mine = all(path.exists() and path.read_text() == "mine" for path in theirs)
        return {"file": self._look(), "others": others, "neighbours": mine}

    def still_open(self) -> list[str]:
        """What this process has open in the folder; where the system does not tell (macOS), nothing."""
        found = []
        for path in Path("/proc/self/fd").glob("*"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(path))
        return [path for path in found if f"{path}/".startswith(f"{os.path.realpath(self.folder)}/")]

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
    first, mask = Room(case, save, old=False), _umask()
    watch.call("save", state=first.states["new"], path=str(first.path))
    left = [name for name, *_ in changed(mask, _umask())]
    facts["first"] = {"ended": 0, "failed": None, "left": left} | first.holds()
    watch.call("save", state=first.states["old"], path=str(first.path))
    facts["again"] = first.holds()["file"]
    facts["smaller"] = _again_smaller(watch, first)
    facts["open"] = first.still_open()
    facts["strays"] = sorted(
        {path.name for path in first.folder.parent.iterdir() if not is_torchs_folder(path.name)} - {first.folder.name}
    )

    def told(where: str, old: bool = True, **how: Any) -> Facts:
        room = Room(case, save, old)
        return _told(room.life(**how), room) | {"where": where}

    facts["whole"] = _traced(Room(case, save, by_save=True))
    facts["new"] = _traced(Room(case, save, old=False))
    bare, relative = Room(case, save), Room(case, save)
    facts["bare"], facts["relative"] = _traced(bare, here=bare.folder), _traced(relative, here=relative.folder.parent)
    steps = [
        note
        for note in facts["whole"]["notes"]
        if note["what"] not in ("entry", "failed", "raised", "returned", "left")
    ]
    chosen = range(len(steps)) if case["kills"] == "all" else dice.sample(range(len(steps)), min(2, len(steps)))
    facts["kills"] = [told(f"before its step {n + 1} with files ({_name(steps[n])})", events=n) for n in chosen]
    size = facts["whole"]["size"]
    bytes_at = [0, 1, size - 1, *(dice.randrange(size) for _ in range(case["bytes"] - 3))][: case["bytes"]]
    facts["kills"] += [told(f"at byte {byte:,}", size=byte) for byte in bytes_at]
    facts["first kills"] = [told(f"at byte {b:,} of the first save", old=False, size=b) for b in (0, size // 2)]
    facts["full"] = [told(f"a disk that is full at byte {b:,}", full=b) for b in (0, size // 2, size - 1)]
    facts["sync"] = told("a disk that turns out to be full at fsync", **{"broken sync": "a file"})
    facts["folder sync"] = told(
        "a disk that turns out to be full at the folder's fsync", **{"broken sync": "the folder"}
    )
    facts["errors"] = [told(error, error=ERRORS[error]) for error in case["errors"]]
    room = Room(case, save)
    for number in range(LITTER):
        room.life(size=size // (number + 2))
    renames = [n for n, note in enumerate(steps) if note["what"] == "rename"]
    room.life(events=renames[0] if renames else len(steps) - 1, large=True)  # what it leaves is longer than what comes
    facts["litter"] = _told(room.life(), room)


def _again_smaller(watch: Any, room: Room) -> str:
    """A third save, of the very dictionary that was saved before, in which less is now, and other numbers."""
    import torch

    state = room.states["old"]
    state["model"]["b"] += 1
    del state["model"]["none"]
    watch.call("save", state=state, path=str(room.path))
    try:
        found = torch.load(room.path)
    except Exception:
        return "half"
    return "that state" if _same(state, found) else "something else"


def _umask() -> Facts:
    mask = os.umask(0)
    os.umask(mask)
    return {"the umask": mask}


def _name(note: dict[str, Any]) -> str:
    return note["what"] + (" of the folder" if note.get("folder") else "")


def _traced(room: Room, **how: Any) -> Facts:
    """A whole save, with what is needed to judge its steps."""
    life = room.life(**how)
    found = os.stat(room.path) if room.path.exists() else None
    numbers = (found.st_ino, found.st_size, found.st_mtime_ns) if found else (0, 1000, 0)
    facts = dict(zip(("inode", "size", "written"), numbers, strict=True)) | {"folder": os.path.realpath(room.folder)}
    return _told(life, room) | facts | {"notes": life.notes, "inode of the folder": os.stat(room.folder).st_ino}


def _told(life: Life, room: Room) -> Facts:
    left = [name for note in life.of("left") for name in note["names"]]
    kinds = [note["kind"] for note in life.of("raised")]
    return {"ended": life.ended, "failed": first_failure([life]), "kinds": kinds, "left": left, **room.holds()}


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
