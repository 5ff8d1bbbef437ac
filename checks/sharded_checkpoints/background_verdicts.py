"""Verdicts on a save in the background: the state of the call, one copy, whole files, errors that are heard once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.contracts import Broken, Case, Facts
from checks.contracts.events import is_torchs_folder


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first save, then two in a row, then the error: what is not so first."""
    facts = world[0]
    for judged in (_single, _row, _beside, _errors):
        if broken := judged(case, facts):
            yield broken
            return
    if strays := [name for name in facts["strays"] if not is_torchs_folder(name)]:
        yield Broken(
            "value:strays", "files are left elsewhere than in the folder of the checkpoints", ", ".join(strays)
        )
    if facts["threads"] > 2:
        yield Broken("value:threads", "threads are left over", facts["threads"], "one at most for each object")


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
    if one["early"]:
        return Broken("value:early", "wait() returns while write still runs: wait until the thread has ended")
    if one["file"] == "later":
        words = "the file holds the state after the training went on, not that of the call: copy before save returns"
        return Broken("value:later", words, f"other at {one['place']}", "the state of the call")
    if one["half"] == "half":
        words = (
            "while write is half done, the file under its final name is half a file: write to another name, then rename"
        )
        return Broken("value:half", words)
    if one["file"] != "right":
        words = "after wait() the file does not hold the state of the call: is everything copied, deep inside too?"
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


def _beside(case: Case, facts: Facts) -> Broken | None:
    if facts["beside"] != {"file": "right", "waits": False, "heard": ["nothing"] * 2, "first": "right"}:
        words = "two objects get in each other's way: a save of one waits for the other's file, or loses it. What an "
        words += "object has begun belongs to itself (self), not to its class or the module, and so does its temporary "
        words += "file, if both are in one folder"
        return Broken("value:beside", words)
    return None


def _errors(case: Case, facts: Facts) -> Broken | None:
    each = zip(failures(case), facts["failed"], strict=False)
    broken = next((broken for how, failed in each if (broken := _error(*how, failed))), None)
    if not broken and facts.get("no name") == "nothing":
        words = "the file cannot get its name (a folder has it), and wait() says nothing: an error of the rename "
        return Broken("value:no name", words + "comes out too")
    return broken


def failures(case: Case) -> list[tuple[str, str]]:
    """The kinds of errors in a case, one after the other, each with the method that has to tell of it."""
    return list(zip(case["errors"].split(" and "), case["met by"].split(" and "), strict=True))


def _error(kind: str, by: str, failed: Facts) -> Broken | None:
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
    if not failed["untouched"] and not failed["older"]:
        words = "after a write that failed there is a file under the final name, and there was none before: it is no "
        return Broken("value:lost", words + "checkpoint")
    if not failed["untouched"]:
        return Broken("value:lost", "after a write that failed, the older file is gone or changed")
    if failed["others"]:
        words = "after a write that failed, its half-written file stays and takes the room"
        return Broken("value:room", words, ", ".join(failed["others"]), "nothing")
    if "the error" in (failed["again"], *failed["next"]):
        return Broken("value:twice", "the error comes out a second time: who has heard it once saves on")
    if {failed["again"], *failed["next"]} != {"nothing"} or failed["file"] != "right":
        measured = f"raised: {', '.join((failed['again'], *failed['next']))}; the file holds {failed['file']}"
        return Broken("value:after", "after an error was told, saving does not work any more", measured, "as before it")
    return None
