"""Check of ``AsyncSaver``: the state of the call, whole files, one copy, and a disk that ends only when it may."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.processes import run
from checks.labs.sharded_checkpoints.slow_disk import PATIENCE, SlowDisk, others_held, soon

OFFICIAL = Reference("sharded_checkpoints", "AsyncSaver")
CASES = [{"older file": False, "seconds": 0.2}, {"older file": True, "seconds": 0.7}]  # of a write
ROWS = 4099  # of no other tensor
renamed: list[Any] = []  # (path, whether it was there) at each rename
died: list[Any] = []  # threads, and of what


def state_of(step: int) -> dict[str, Any]:
    """Tensors of several types, one transposed, one empty; lists and numbers, deep inside too."""
    adam = {number: {"step": torch.tensor(step), "mean": torch.full((5,), 0.5 + step)} for number in (0, 3)}
    model = {"w": torch.full((ROWS,), float(step)), "t": torch.ones(2, 3).t() * step, "none": torch.empty(0, 2),
             "half": torch.full((3,), step).bfloat16()}  # fmt: skip
    return {"step": step, "model": model, "adam": adam, "done": {"epochs": [1, step]}, "rates": [0.1, {"now": 0.2}]}


def places(state: Any) -> dict[str, Any]:
    """All numbers and tensors in it, by their place."""
    return {f"state{keystr(path)}": one for path, one in tree_flatten_with_path(state)[0]}


def train_on(state: Any) -> None:
    """A step of training: tensors, lists and dictionaries are changed in place."""
    for one in places(state).values():
        if isinstance(one, torch.Tensor):
            one.add_(1)
    state["step"] += 1
    state["done"]["epochs"].append(state["step"])
    state["rates"][1]["now"] *= 0.9


def save(saver: Any, state: Any, path: Path) -> bytes:
    """A save, and at once a step of training. What the file has to hold (pickled, so that it is no copy of tensors)."""
    before = pickle.dumps(state)
    with others_held():
        with leaves(state=state):
            saver.save(state, str(path))
        train_on(state)
    return before


def holds(path: Path, right: bytes, state: Any) -> None:
    """Refuse a file that does not hold what it has to."""
    found, expected, later = map(places, (torch.load(path), pickle.loads(right), state))
    wrong = [place for place in expected | found if not same(found.get(place), expected.get(place))]
    after = [place for place in wrong if same(found.get(place), later.get(place))]
    words = f"the file holds {after and after[0]} as the training has changed it after the call: copy it before save"
    refuse(after, f"{words} returns, deep inside too")
    refuse(wrong, f"the file does not hold {wrong and wrong[0]} as it was at the call")


def copies(state: Any) -> set[int]:
    """All tensors but the state's own that are as large as its weights, by their memory."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (ROWS,)]
    return {one.data_ptr() for one in found} - {state["model"]["w"].data_ptr()}


def audit(event: str, given: tuple[Any, ...]) -> None:
    if event == "os.rename":
        renamed.append((os.path.abspath(given[1]), os.path.exists(given[1])))


def play(case: dict[str, Any], AsyncSaver: Any) -> None:
    sys.addaudithook(audit)
    threading.excepthook = died.append
    disk, state, seconds = SlowDisk(), state_of(7), case["seconds"]
    with tempfile.TemporaryDirectory(prefix="check-") as place:
        path = Path(place).resolve() / "last.pt"
        if case["older file"]:
            torch.save("older", path)
        saver = AsyncSaver(disk.write)
        saver.wait()  # nothing is under way
        _one(saver, disk, state, path, seconds)
        _two(saver, disk, state, path.parent, seconds)


def _one(saver: Any, disk: SlowDisk, state: Any, path: Path, seconds: float) -> None:
    """A save that is looked at while it is half done."""
    older, right = path.exists(), save(saver, state, path)
    words = "write runs in the thread of the training, which waits for the disk: start a thread"
    refuse(disk.in_main, words)
    refuse(disk.done, "save returns only when the disk has written: return when the copy is made")
    refuse(
        not disk.half.wait(PATIENCE) and not died,
        "save has returned, and write is not called in a thread of this process",
    )
    refuse(died, f"the thread dies of {died and died[0].exc_value!r}")
    words = "write gets the final name, and half a file is no checkpoint: write to another name, then rename"
    refuse(disk.path == str(path), words)
    words = "write gets a name in another folder: that may be another file system, where a rename is a copy"
    refuse(os.path.dirname(disk.path) != str(path.parent), words)
    threading.Timer(seconds, disk.may_end.release).start()
    words = "for a moment the former file is gone, and the new one has no name yet: os.replace puts one in place of "
    refuse(older and not path.exists(), f"{words}the other")
    saver.wait()
    refuse(disk.ended < disk.begun, f"wait() returns while write still runs (for {seconds} s): wait until it has ended")
    refuse(died, f"the thread dies of {died and died[0].exc_value!r}")
    refuse(not path.exists(), "after wait() there is no file under the name")
    holds(path, right, state)
    refuse(older and (str(path), False) in renamed, f"{words}the other")
    words = "the final name gets a copy, and a copy can be half done: rename what was written"
    refuse(os.stat(path).st_ino != disk.inode, words)
    left = sorted({one.name for one in path.parent.iterdir()} - {path.name})
    refuse(left, "after wait() another file is left", measured=", ".join(left))
    words = "after wait() the copy is still held: drop it when it is written"
    refuse(not soon(lambda: not copies(state)), words)


def _two(saver: Any, disk: SlowDisk, state: Any, folder: Path, seconds: float) -> None:
    """A save, and the next one before the first has ended."""
    first, second, seen = folder / "step 20.pt", folder / "step 30.pt", list[int]()

    def go_on() -> None:
        time.sleep(seconds)
        seen.append(len(copies(state)))
        disk.may_end.release()

    one = save(saver, state, first)
    helper = threading.Thread(target=go_on)
    helper.start()
    two = save(saver, state, second)
    named = first.exists()
    helper.join()
    disk.may_end.release()
    saver.wait()
    refuse(disk.most > 1, "two writes run at once: save waits until the one before has ended")
    words = "of two saves in a row the second one is missing: save waits for the first, it does not skip"
    refuse(not second.exists(), words)
    words = "the second save returns before the first file has its name: wait for that, and copy only then"
    refuse(not named, words)
    words = "while the first save is under way, the second one's copy is there as well: wait first, then copy"
    refuse(seen[0] > 1, words)
    holds(first, one, state)
    holds(second, two, state)


@exercise(title="A save in the background", difficulty=2, minutes=25, official=OFFICIAL)
def in_background(AsyncSaver: Any) -> dict[str, str]:
    """Judge the class ``AsyncSaver(write)`` with ``save(state, path)`` and ``wait()``, on a disk that waits."""
    for case in CASES:
        run(play, case, AsyncSaver)
    return {"saves": "each file holds the state of its call, though the training went on at once"}
