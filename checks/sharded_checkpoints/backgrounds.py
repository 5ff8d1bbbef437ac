"""Exercise 2: the class ``AsyncSaver(write)`` with ``save(state, path)`` and ``wait()``."""

from __future__ import annotations

import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checks.contracts import Case, Contract, Facts, Rules
from checks.contracts.snapshot import Snapshot
from checks.inside import Outcome
from checks.sharded_checkpoints.background_verdicts import failures, judge
from checks.sharded_checkpoints.folder_events import FolderEvents
from checks.sharded_checkpoints.slow_disk import Held, SlowDisk
from checks.sharded_checkpoints.states import copied, differs, draw_state, look, tensors_of, train_on

LOOK, LONG = 0.2, 1.2  # seconds: until the check looks who waits; and of a write that no short time-out covers
NAMES = ("last.pt", "step 20.pt", "best.model", "x.tmp")


class DiskGone(BaseException):
    """An error that is no Exception, as DCP's CheckpointException."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError(28, "No space left on device"),
    "MemoryError": MemoryError,
    "a BaseException": lambda: DiskGone("the disk is gone"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "StopIteration": StopIteration,
}


def draw(rng: random.Random) -> list[Case]:
    """Both ways in which an error is met, all kinds of errors, an older file and none, one name and two."""
    kinds = rng.sample(sorted(ERRORS), len(ERRORS))
    cases: list[Case] = []
    for number in range(3):
        names = rng.sample(NAMES, 2)
        cases.append({
            "ranks": 1, "errors": " and ".join(kinds[number::3]),
            "met by": ("wait and save", "save and wait", rng.choice(("wait and wait", "save and save")))[number],
            "fails": "half done" if number != 1 else "at once",
            "older file": number != 1, "names": names if number else [names[0]] * 2, "seed": rng.getrandbits(30),
        })  # fmt: skip
    return cases


class Played:
    """One saver with its disk, in a folder."""

    def __init__(self, case: Case, watch: Any) -> None:
        import torch

        self.case, self.disk, self.held = case, SlowDisk(), Held()
        self.folder = Path(os.getcwd()) / "checkpoints"
        self.folder.mkdir()
        self.paths = [self.folder / name for name in case["names"]]
        self.older = {"older": draw_state(case["seed"] + 9)}
        if case["older file"]:
            torch.save(self.older["older"], self.paths[0])
        self.state = draw_state(case["seed"])
        self.checks_own = [*tensors_of(self.state), *tensors_of(self.older)]
        self.other_disk = SlowDisk()
        self.saver = watch.call("AsyncSaver", write=self.disk.write)
        self.other = watch.call("AsyncSaver", write=self.other_disk.write)

    def save(self, path: Path) -> dict[str, Any]:
        """A save, and at once a step of training. What the file has to hold, and whether the state was left alone."""
        before, seen = copied(self.state), Snapshot({"state": self.state})
        self.checks_own += tensors_of(before)
        self.held.hold()
        try:
            self.saver.save(self.state, str(path))
            touched = differs(self.state, before) or self._touched(seen)
            train_on(self.state)
        finally:
            self.held.release()
        return {"state": before, "touched": touched}

    def _touched(self, seen: Snapshot) -> str:
        """What else is other than before: a tensor's memory, say, or its attributes."""
        changes = seen.changes_to(Snapshot({"state": self.state}))
        return next((f"{path.rpartition('.')[0]} ({path.rpartition('.')[2]})" for path, *_ in changes), "")


def scene(case: Case, watch: Any, facts: Facts) -> None:
    from checks.contracts import memory

    play = Played(case, watch)
    living = memory.living(*tensors_of(play.state))
    facts["threads"] = threading.active_count()
    with watch.step("saver", play.saver):
        play.saver.wait()  # nothing is under way (a step by itself: a mode that each call turns over shows)
    with watch.step("saver", play.saver):
        with living:
            facts["one"] = _one(play)
            if facts["one"]["early"]:  # (and below) who does not wait gets into the way of all that follows
                return
            facts["two"] = _two(play, living)
            if facts["two"]["most"] > 1:
                return
        facts["beside"] = _beside(play)
        facts["failed"] = [_failed(play, *pair) for pair in failures(case)]
        facts["no name"] = _no_name(play)
    facts["threads"] = threading.active_count() - facts["threads"]
    facts["strays"] = sorted(path.name for path in Path(os.getcwd()).iterdir() if path != play.folder)


def _one(play: Played) -> Facts:
    """A save that is looked at while it is half done."""
    disk, path, events = play.disk, play.paths[0], FolderEvents(str(play.folder))
    saved = play.save(path)
    facts: Facts = {"touched": saved["touched"], "returned": not any(note["done"] for note in disk.notes)}
    states = {"right": saved["state"], "later": play.state} | play.older
    disk.go.release()
    disk.half.wait(1.0)
    facts["half"] = look(path, states)["file"]
    facts["away"] = [note["path"] for note in disk.notes if os.path.dirname(note["path"]) != str(play.folder)]
    timer = threading.Timer(LONG if play.case["fails"] == "at once" else LOOK, disk.finish.release)
    timer.start()
    play.saver.wait()
    facts["early"] = not all(note["ended"] for note in disk.notes)
    facts |= look(path, states)
    timer.join()
    _soon(lambda: all(note["ended"] for note in disk.notes))
    facts |= {"notes": [dict(note) for note in disk.notes], "events": events.new()}
    facts["ino"] = os.stat(path).st_ino if path.exists() else None
    facts["others"] = _others(play)
    gc.collect()
    _soon(lambda: all(one.expired() for one in disk.copies))  # (a thread may be about to end)
    facts["kept"] = sum(not one.expired() for one in disk.copies)
    return facts


def _two(play: Played, living: Any) -> Facts:
    """A save, and the next one before the first has ended."""
    disk, (first, second) = play.disk, play.paths
    disk.most = 0
    one, facts = play.save(first), {}

    def go_on() -> None:
        time.sleep(LOOK)
        facts["held"] = living.now(*play.checks_own)
        disk.permit()

    helper = threading.Thread(target=go_on)
    helper.start()
    two = play.save(second)
    facts["first"] = look(first, {"right": one["state"], "second": two["state"]})["file"]
    helper.join()
    disk.permit()
    if disk.most > 1:  # two writes at once get in each other's way or not, as luck has it
        _heard(None, play.saver.wait)
    else:
        play.saver.wait()
    facts |= {"most": disk.most, "bytes": sum(x.nbytes for x in tensors_of(play.state))}
    facts["second"] = look(second, {"right": two["state"], "first": one["state"], "later": play.state})["file"]
    return facts


def _beside(play: Played) -> Facts:
    """A save of another object, from beginning to end, while the first one's file in the same folder is half done."""
    path, state, begun = play.folder / "beside.pt", draw_state(play.case["seed"] + 1), len(play.disk.notes)
    play.disk.half.clear()
    right = play.save(play.paths[0])["state"]
    play.disk.go.release()
    play.disk.half.wait(1.0)
    play.other_disk.permit()
    play.other.save(state, str(path))
    heard = [_heard(None, play.other.wait)]
    facts = {"file": look(path, {"right": state})["file"], "waits": any(one["done"] for one in play.disk.notes[begun:])}
    play.disk.finish.release()
    facts["heard"] = [*heard, _heard(None, play.saver.wait)]
    facts["first"] = look(play.paths[0], {"right": right})["file"]
    path.unlink(missing_ok=True)
    return facts


def _failed(play: Played, kind: str, by: str) -> Facts:
    """A write that fails half done; who hears of it, and what comes after it."""
    disk, path, before = play.disk, play.paths[0], _others(play)
    if by == "wait":
        path = play.folder / f"{kind}.pt"  # there is none yet
    was = _content(path)
    expected = disk.error = ERRORS[kind]()
    disk.no_file = play.case["fails"] == "at once"
    started = len(disk.notes)
    disk.permit()
    facts: Facts = {"at once": _heard(expected, lambda: play.save(path))}
    _soon(lambda: all(note["ended"] for note in disk.notes[started:]) and len(disk.notes) > started)
    begun, disk.error, disk.no_file = len(disk.notes), None, False
    meet = play.saver.wait if by == "wait" else lambda: play.saver.save(play.state, str(play.paths[1]))
    facts["met"] = _heard(expected, meet)
    facts["begun"] = len(disk.notes) - begun
    facts |= {"untouched": _content(path) == was, "older": was is not None}
    facts["others"] = sorted(set(_others(play)) - set(before))
    disk.go.release(facts["begun"] + 1)
    disk.finish.release(facts["begun"] + 1)
    facts["again"] = _heard(expected, play.saver.wait)
    right = {"right": copied(play.state)}
    facts["next"] = [_heard(expected, one) for one in (lambda: play.save(path), play.saver.wait)]
    facts["file"] = look(path, right)["file"]
    return facts


def _no_name(play: Played) -> str:
    """Who hears of it if the file cannot get its name: a folder has it."""
    path, before = play.folder / "taken.pt", _others(play)
    (path / "a folder").mkdir(parents=True)
    play.disk.permit()
    heard = _heard(None, lambda: (play.save(path), play.saver.wait()))
    shutil.rmtree(path)
    for name in set(_others(play)) - set(before):
        (play.folder / name).unlink(missing_ok=True)
    return heard


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _heard(expected: BaseException | None, call: Callable[[], Any]) -> str:
    """What a call raises: "nothing", "the error", or its type."""
    try:
        call()
    except BaseException as error:
        if isinstance(error, Outcome):
            raise
        return "the error" if error is expected else type(error).__name__
    return "nothing"


def _soon(true: Callable[[], bool]) -> None:
    for _ in range(100):
        if true():
            return
        time.sleep(0.01)


def _others(play: Played) -> list[str]:
    return sorted(path.name for path in play.folder.iterdir() if path not in play.paths)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    two = played[0][1][0]["two"]
    return {
        "saves": "each file holds the state of its call, though the training went on at once",
        "memory": f"{two['held']:,} bytes for a state of {two['bytes']:,}",
        "errors that came out": ", ".join(kind for case, _ in played for kind, _ in failures(case)),
    }


CONTRACT = Contract(
    name="sharded_checkpoints.in_background",
    rules={
        "AsyncSaver": Rules(changes=("around.the number of threads",)),
        "saver": Rules(
            changes=("around.the files in its folder", "around.the number of threads"), allows=("writes:*",)
        ),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("starts:*", "{}"), ("value:*", "{}")),
    refused=("torch.distributed.checkpoint.async_save", "torch.distributed.checkpoint.state_dict_saver.async_save"),
    figures=figures,
)
