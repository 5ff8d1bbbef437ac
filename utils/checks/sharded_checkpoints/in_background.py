"""Exercise 3: the class ``AsyncSaver(write)`` with ``save(state, path)`` and ``wait()``."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from utils.checks.checkpointing.folder_events import FolderEvents
from utils.checks.contracts import Broken, Case, Contract, Facts, Rules
from utils.checks.inside import Outcome
from utils.checks.sharded_checkpoints.slow_disk import Held, SlowDisk

LOOK = 0.2  # seconds until the check looks who waits
NAMES = ("last.pt", "step 20.pt", "best.model", "x.tmp")


class DiskGone(BaseException):
    """An error that is no Exception, as DCP's CheckpointException."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError(28, "No space left on device"),
    "MemoryError": MemoryError,
    "a BaseException": lambda: DiskGone("the disk is gone"),
    "SystemExit": lambda: SystemExit(3),
}


def draw(rng: random.Random) -> list[Case]:
    """Both ways in which an error is met, two kinds of errors, an older file and none, one name and two."""
    kinds = rng.sample(sorted(ERRORS), 3)
    kinds[0] = "OSError" if "OSError" not in kinds else kinds[0]
    cases: list[Case] = []
    for number, kind in enumerate(kinds):
        names = rng.sample(NAMES, 2)
        cases.append({
            "ranks": 1, "error": kind, "met by": ("wait", "save", rng.choice(("wait", "save")))[number],
            "older file": number != 1, "names": names if number else [names[0]] * 2, "seed": rng.getrandbits(30),
        })  # fmt: skip
    return cases


def draw_state(seed: int) -> dict[str, Any]:
    """Tensors of several types, one strided, one empty, two that are tied; lists and numbers."""
    import torch

    dice = random.Random(seed)
    rows = dice.randint(3, 9)
    wide = torch.full((rows, 4), float(dice.randint(1, 50)))
    model = {"w": wide.t(), "tied": wide.t(), "half": torch.full((rows,), 0.5).bfloat16(), "none": torch.empty(0, 2)}
    adam = [{"step": torch.tensor(float(dice.randint(1, 9))), "mean": torch.ones(rows, 2)} for _ in range(2)]
    return {"model": model, "adam": adam, "done": {"step": dice.randint(1, 99), "epochs": [1, 2]}, "rates": [0.1, 0.2]}


def copied(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def train_on(value: Any) -> None:
    """A step of training: all that can be changed in place is."""
    import torch

    if isinstance(value, torch.Tensor):
        value.add_(1)
    elif isinstance(value, dict):
        for name, one in value.items():
            if isinstance(one, int):
                value[name] = one + 1
            train_on(one)
    elif isinstance(value, list):
        for one in value:
            train_on(one)
        if value and not isinstance(value[0], dict):
            value.append(0)


def differs(one: Any, other: Any, path: str = "state") -> str:
    """The first place where two states differ; "" if there is none."""
    import torch

    if isinstance(other, torch.Tensor):
        same = isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return "" if same else path
    if isinstance(other, dict):
        if not isinstance(one, dict) or one.keys() != other.keys():
            return path
        return next((found for k in other if (found := differs(one[k], other[k], f"{path}[{k!r}]"))), "")
    if isinstance(other, list):
        if not isinstance(one, list) or len(one) != len(other):
            return path
        pairs = zip(one, other, strict=True)
        return next((found for n, (a, b) in enumerate(pairs) if (found := differs(a, b, f"{path}[{n}]"))), "")
    return "" if type(one) is type(other) and one == other else path


def look(path: Path, states: dict[str, Any]) -> dict[str, str]:
    """Which of these states a file holds, or "nothing", "half", "another"; and where it differs from the first."""
    import torch

    if not path.exists():
        return {"file": "nothing", "place": ""}
    try:
        found = torch.load(path)
    except Exception:
        return {"file": "half", "place": ""}
    file = next((name for name, state in states.items() if not differs(found, state)), "another")
    return {"file": file, "place": differs(found, next(iter(states.values())))}


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
        self.saver = watch.call("AsyncSaver", write=self.disk.write)

    def save(self, path: Path) -> dict[str, Any]:
        """A save, and at once a step of training. What the file has to hold, and whether the state was left alone."""
        before = copied(self.state)
        self.held.hold()
        try:
            self.saver.save(self.state, str(path))
            touched = differs(self.state, before)
            train_on(self.state)
        finally:
            self.held.release()
        return {"state": before, "touched": touched}


def scene(case: Case, watch: Any, facts: Facts) -> None:
    from utils.checks.contracts import memory

    play = Played(case, watch)
    living = memory.living(*_tensors(play.state))
    facts["threads"] = threading.active_count()
    with watch.step("saver", play.saver):
        play.saver.wait()  # nothing is under way
        with living:
            facts["one"] = _one(play)
            facts["two"] = _two(play, living)
        facts["failed"] = _failed(play)
    facts["threads"] = threading.active_count() - facts["threads"]


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
    disk.finish.release()
    play.saver.wait()
    facts |= look(path, states)
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
    one, facts, tensors = play.save(first), {}, _tensors(play.state)

    def go_on() -> None:
        time.sleep(LOOK)
        facts["held"] = living.now(*tensors)
        disk.permit()

    helper = threading.Thread(target=go_on)
    helper.start()
    two = play.save(second)
    facts["first"] = look(first, {"right": one["state"], "second": two["state"]})["file"]
    helper.join()
    disk.permit()
    play.saver.wait()
    facts |= {"most": disk.most, "bytes": sum(x.nbytes for x in tensors)}
    facts["second"] = look(second, {"right": two["state"], "first": one["state"], "later": play.state})["file"]
    return facts


def _failed(play: Played) -> Facts:
    """A write that fails half done; who hears of it, and what comes after it."""
    disk, path, before = play.disk, play.paths[0], _others(play)
    was = path.read_bytes()
    expected = disk.error = ERRORS[play.case["error"]]()
    disk.permit()
    facts: Facts = {"at once": _heard(expected, lambda: play.save(path))}
    _soon(lambda: disk.notes[-1]["ended"])
    begun, disk.error = len(disk.notes), None
    meet = play.saver.wait if play.case["met by"] == "wait" else lambda: play.saver.save(play.state, str(play.paths[1]))
    facts["met"] = _heard(expected, meet)
    facts["begun"] = len(disk.notes) - begun
    facts["untouched"] = path.exists() and path.read_bytes() == was
    facts["others"] = sorted(set(_others(play)) - set(before))
    disk.go.release(facts["begun"] + 1)
    disk.finish.release(facts["begun"] + 1)
    facts["again"] = _heard(expected, play.saver.wait)
    saved = play.save(path)
    facts["next"] = _heard(expected, play.saver.wait)
    facts["file"] = look(path, {"right": saved["state"]})["file"]
    return facts


def _heard(expected: BaseException, call: Callable[[], Any]) -> str:
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


def _tensors(state: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(state) if isinstance(one, torch.Tensor)]


def _others(play: Played) -> list[str]:
    return sorted(path.name for path in play.folder.iterdir() if path not in play.paths)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first save, then two in a row, then the error: what is not so first."""
    facts = world[0]
    for judged in (_single, _row, _error):
        if broken := judged(case, facts):
            yield broken
            return
    if facts["threads"] > 1:
        yield Broken("value:threads", "threads are left over", facts["threads"], "one at most")


def _single(case: Case, facts: Facts) -> Broken | None:
    one = facts["one"]
    if one["touched"]:
        return Broken("value:touched", f"save changes {one['touched']}: the training goes on with it")
    if not one["notes"]:
        return Broken("value:none", "write was never called")
    if any(note["main"] for note in one["notes"]):
        return Broken(
            "value:main", "write runs in the thread of the training, which waits for the disk: start a thread"
        )
    if not one["returned"] or any(note["late"] for note in one["notes"]):
        return Broken("value:waits", "save returns only when the disk has written: return when the copy is made")
    if one["file"] == "later":
        words = "the file holds the state after the training went on, not that of the call: copy before save returns"
        return Broken("value:later", words, f"other at {one['place']}", "the state of the call")
    if one["half"] == "half":
        words = (
            "while write is half done, the file under its final name is half a file: write to another name, then rename"
        )
        return Broken("value:half", words)
    if one["file"] != "right":
        words = "after wait() the file does not hold the state of the call"
        at = f"{one['file']}, other at {one['place']}" if one["place"] else one["file"]
        return Broken("value:state", words, at, "the state of the call")
    name = case["names"][0]
    moved = [e for e in one["events"] if e["name"] == name and e["event"] in ("removed", "moved from")]
    if case["older file"] and (one["half"] != "older" or moved):
        words = "for a moment there is no file under the name: a kill would lose the old one. os.replace does both"
        return Broken("value:gone", words, one["half"], "the older one until the new one is whole")
    if one["notes"][-1]["ino"] != one["ino"]:
        return Broken(
            "value:copied", "the final name gets a copy, and a copy can be half done: rename what was written"
        )
    if one["away"]:
        words = "write gets a name in another folder: that may be another file system, where a rename is a copy"
        return Broken("value:away", words)
    if one["others"]:
        return Broken("value:left", "after wait() another file is left", ", ".join(one["others"]), "none")
    if one["kept"]:
        words = "after wait() the copy is still held: drop it when it is written"
        return Broken("value:kept", words, f"{one['kept']} tensors", "none")
    return None


def _row(case: Case, facts: Facts) -> Broken | None:
    two = facts["two"]
    if two["most"] > 1:
        return Broken(
            "value:overlap", "two writes run at once: save waits until the one before has ended", two["most"], 1
        )
    if two["first"] == "second" or two["second"] == "first" or two["second"] == "nothing":
        words = "of two saves in a row the second one is missing: save waits for the first, it does not skip"
        return Broken("value:skipped", words, two["second"], "the second state")
    if two["first"] != "right":
        words = "the second save returns before the first has its name: wait for it, or two copies fill the memory"
        return Broken("value:queued", words, two["first"], "the first state")
    if two["second"] != "right":
        return Broken(
            "value:state", "of two saves in a row the second file is wrong", two["second"], "the second state"
        )
    if two["held"] > 1.2 * two["bytes"]:
        words = "while the first save is under way, the second one's copy is there as well: wait first, then copy"
        return Broken("value:copies", words, f"{two['held']:,} bytes", f"{two['bytes']:,}: one copy")
    return None


def _error(case: Case, facts: Facts) -> Broken | None:
    failed, kind, by = facts["failed"], case["error"], case["met by"]
    if failed["met"] == "nothing":
        words = (
            f"write failed with {kind}, and the next {by}() says nothing: whoever called it believes that all is well"
        )
        return Broken("value:silent", words)
    if failed["met"] != "the error":
        words = f"write failed with {kind}, and {by}() raises something else: raise that very exception"
        return Broken("value:other", words, failed["met"], kind)
    if by == "save" and failed["begun"]:
        return Broken(
            "value:begun", "a save that tells of the error before it begins nothing itself", failed["begun"], 0
        )
    if not failed["untouched"]:
        return Broken("value:lost", "after a write that failed, the older file is gone or changed")
    if failed["others"]:
        words = "after a write that failed, its half-written file stays and takes the room"
        return Broken("value:room", words, ", ".join(failed["others"]), "nothing")
    if "the error" in (failed["again"], failed["next"]):
        return Broken("value:twice", "the error comes out a second time: who has heard it once saves on")
    if failed["again"] != "nothing" or failed["next"] != "nothing" or failed["file"] != "right":
        measured = f"{failed['again']}, {failed['next']}, the file holds {failed['file']}"
        return Broken("value:after", "after an error was told, saving does not work any more", measured, "as before it")
    return None


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    two = played[0][1][0]["two"]
    return {
        "saves": "each file holds the state of its call, though the training went on at once",
        "memory": f"{two['held']:,} bytes for a state of {two['bytes']:,}",
        "errors that came out": ", ".join(case["error"] for case, _ in played),
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
    mistakes=(("value:*", "{}"),),
    refused=("torch.distributed.checkpoint.async_save", "torch.distributed.checkpoint.state_dict_saver.async_save"),
    figures=figures,
)
