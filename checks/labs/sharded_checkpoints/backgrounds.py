"""Check of ``AsyncSaver``: the state of the call, whole files, one copy, on a disk that waits for the check."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.processes import run

OFFICIAL = Reference("sharded_checkpoints", "AsyncSaver")
CASES = [{"older file": False, "seconds": 0.2}, {"older file": True, "seconds": 0.7}]  # of a write
ROWS = 4099  # of no other tensor
PATIENCE = 4.0  # seconds that a write waits for the check; only who waits for the disk himself sees them pass
MOMENT = 0.6  # seconds that other threads are held back; who waits for them loses no more than that


@exercise(title="A save in the background", difficulty=2, minutes=25, official=OFFICIAL)
def in_background(AsyncSaver: Any) -> dict[str, str]:
    """Judge the class ``AsyncSaver(write)`` with ``save(state, path)`` and ``wait()``, on a disk that waits."""
    for case in CASES:
        run(play, case, AsyncSaver)
    return {"saves": "each file holds the state of its call, though the training went on at once"}


class SlowDisk:
    """``write(state, path)`` as the answer gets it: half of the bytes, and it ends when it may, or at once (free)."""

    def __init__(self, free: bool = False) -> None:
        self.may_end, self.half = threading.Semaphore(9 * free), threading.Event()
        self.error: BaseException | None = None
        self.at_once = False  # the error comes before there is a file
        self.begun = self.ended = self.done = self.most = 0  # writes; how many at once
        self.in_main, self.path, self.inode = False, "", 0

    def write(self, state: Any, path: Any) -> None:
        self.in_main = threading.current_thread() is threading.main_thread()
        self.begun, self.path, content = self.begun + 1, os.path.abspath(path), io.BytesIO()
        self.most = max(self.most, self.begun - self.ended)
        try:
            if self.at_once and self.error:
                raise self.error
            torch.save(state, content)
            with open(path, "wb") as file:
                file.write(content.getvalue()[: content.tell() // 2])
                file.flush()
                self.half.set()
                self.in_main or self.may_end.acquire(timeout=PATIENCE)
                if self.error:
                    raise self.error
                file.write(content.getvalue()[content.tell() // 2 :])
                self.inode = os.fstat(file.fileno()).st_ino
            self.done += 1
        finally:
            self.ended += 1


@contextlib.contextmanager
def others_held() -> Iterator[None]:
    """New threads stand still, for a moment at most: who copies there what the training is about to change is late."""
    free, until = threading.Event(), time.monotonic() + MOMENT

    def wait(*_: Any) -> None:
        free.wait(max(0.0, until - time.monotonic()))

    threading.settrace(wait)  # each new thread calls it when it calls a function
    try:
        yield
    finally:
        free.set()
        threading.settrace(None)  # type: ignore[arg-type]


def soon(true: Callable[[], Any]) -> bool:
    """Whether it becomes true: a thread may be about to end."""
    until = time.monotonic() + PATIENCE
    while not (now := true()) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(now)


def state_of(step: int) -> dict[str, Any]:
    """Tensors of several types, one transposed, one empty; lists and numbers, deep inside too."""
    adam = {number: {"step": torch.tensor(step), "mean": torch.full((5,), 0.5 + step)} for number in (0, 3)}
    model = {"w": torch.full((ROWS,), float(step)), "t": torch.ones(2, 3).t() * step, "none": torch.empty(0, 2),
             "half": torch.full((3,), step).bfloat16()}  # fmt: skip
    return {"step": step, "model": model, "adam": adam, "done": {"epochs": [1, step]}, "rates": [0.1, {"now": 0.2}]}


def places(state: Any) -> dict[str, Any]:
    """All numbers and tensors in it, by their place."""
    return {f"state{keystr(path)}": one for path, one in tree_flatten_with_path(state)[0]}


def save(saver: Any, state: Any, path: Path) -> tuple[bytes, bytes]:
    """A save, and at once a step of training, in place. The state at the call and after it, pickled: not as tensors."""
    before = pickle.dumps(state)
    with others_held():
        with leaves(state=state):
            saver.save(state, str(path))
        for one in places(state).values():
            if isinstance(one, torch.Tensor):
                one.add_(1)
        state["step"] += 1
        state["done"]["epochs"].append(state["step"])
        state["rates"][1]["now"] *= 0.9
        return before, pickle.dumps(state)


def holds(path: Path, states: tuple[bytes, bytes]) -> None:
    """Refuse a file that does not hold what it has to."""
    content, expected, later = map(places, (torch.load(path), *map(pickle.loads, states)))
    wrong = [place for place in expected | content if not same(content.get(place), expected.get(place))]
    after = [place for place in wrong if same(content.get(place), later.get(place))]
    fault = f"the file holds {after and after[0]} as the training has changed it after the call: copy it before save"
    refuse(after, f"{fault} returns, deep inside too")
    refuse(wrong, f"the file does not hold {wrong and wrong[0]} as it was at the call")


def copies(state: Any) -> set[int]:
    """All tensors but the state's own that are as large as its weights, by their memory."""
    gc.collect()
    large = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (ROWS,)]
    return {one.data_ptr() for one in large} - {state["model"]["w"].data_ptr()}


def play(case: dict[str, Any], AsyncSaver: Any) -> None:
    """A save that is looked at while it is half done, and the next one before the first has ended."""
    renamed, died = list[Any](), list[Any]()  # paths, and whether they were there; threads, and of what

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event == "os.rename":
            renamed.append((os.path.abspath(given[1]), os.path.exists(given[1])))

    sys.addaudithook(hear)
    threading.excepthook = died.append
    disk, state, seconds, older = SlowDisk(), state_of(7), case["seconds"], case["older file"]
    with tempfile.TemporaryDirectory(prefix="check-") as place:
        first, second = (Path(place).resolve() / name for name in ("step 20.pt", "step 30.pt"))
        if older:
            torch.save("older", first)
        saver = AsyncSaver(disk.write)
        saver.wait()  # nothing is under way
        states = save(saver, state, first)
        refuse(disk.in_main, "write runs in the thread of the training, which waits for the disk: start a thread")
        refuse(disk.done, "save returns only when the disk has written: return when the copy is made")
        refuse(not soon(lambda: disk.half.is_set() or died), "save has returned, and no thread here calls write")
        refuse(died, f"the thread dies of {died and died[0].exc_value!r}")
        refuse(disk.path == str(first), "write gets the final name, and half a file is no checkpoint: rename it then")
        fault = "write gets a name in another folder: that may be another file system, where a rename is a copy"
        refuse(os.path.dirname(disk.path) != str(first.parent), fault)
        seen = list[int]()
        first_end = threading.Timer(seconds, lambda: (seen.append(len(copies(state))), disk.may_end.release()))
        first_end.start()
        states_too = save(saver, state, second)
        named = first.exists()
        first_end.join()
        threading.Timer(seconds, disk.may_end.release).start()
        saver.wait()
        refuse(disk.most > 1, "two writes run at once: save waits until the one before has ended")
        refuse(disk.ended < disk.begun, f"wait() returns while write still runs (for {seconds} s): wait for its end")
        refuse(died, f"the thread dies of {died and died[0].exc_value!r}")
        refuse(disk.begun < 2, "of two saves in a row the second one is missing: save waits for the first, and saves")
        refuse(not named, "the second save returns before the first file has its name: wait for that, then copy")
        refuse(seen[0] > 1, "the second save's copy is there while the first save is under way: wait first, then copy")
        refuse(not second.exists(), "after wait() there is no file under the name")
        holds(first, states)
        holds(second, states_too)
        fault = "for a moment the former file is gone, and the new one has no name yet: os.replace it, without removing"
        refuse(older and (str(first), False) in renamed, fault)
        fault = "the final name gets a copy, and a copy can be half done: rename what was written"
        refuse(os.stat(second).st_ino != disk.inode, fault)
        left = sorted({*os.listdir(second.parent)} - {first.name, second.name})
        refuse(left, "after wait() another file is left", measured=", ".join(left))
        refuse(not soon(lambda: not copies(state)), "after wait() the copy is still held: drop it when it is written")
