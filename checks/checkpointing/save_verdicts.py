"""Verdicts on a save: old or new at every moment, on the disk before it has its name, nothing left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from checks.checkpointing.lives import FAILED
from checks.contracts import Broken, Case, Facts
from checks.verdicts import NotStarted

LITTER = 4  # kills in a row in one folder
Notes = Sequence[dict[str, Any]]


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """Old or new, at every moment; on the disk before it has its name; nothing left behind. What is not so first."""
    facts = world[0]
    judged = (_whole, _ordered, _killed, _writers, _full, _errors, _left, _bare, _litter)
    with contextlib.suppress(KeyError):
        for one in judged:
            if broken := one(case, facts):
                yield broken
                return


def _whole(case: Case, facts: Facts) -> Broken | None:
    for found in (facts["first"], facts["whole"], facts["new"]):
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
        if found["others"]:
            words = "a whole save leaves more than the checkpoint in the folder: leave nothing of your own beside it"
            return Broken("value:beside", words, ", ".join(found["others"]), "nothing")
    if facts["again"] != "old":
        words = "a second save, of another state, does not give that state back"
        return Broken("value:again", words, facts["again"], "that state")
    if facts["smaller"] != "that state":
        words = "a save of the same dictionary, after it has changed and shrunk, does not give it back"
        return Broken("value:again", words, facts["smaller"], "the dictionary as it is now")
    if facts["strays"]:
        words = "save leaves a file outside of the folder of `path`, where everything has to happen"
        return Broken("value:strays", words, ", ".join(facts["strays"]), "none")
    if facts["open"]:
        words = "save leaves a file or folder open: each save takes one more descriptor, until there are none"
        return Broken("value:open", words, ", ".join(sorted({os.path.basename(one) for one in facts["open"]})), "none")
    return None


def _entries(facts: Facts) -> list[tuple[int, dict[str, Any]]]:
    return [(place, note) for place, note in enumerate(facts["notes"]) if note["what"] == "entry"]


def _ordered(case: Case, facts: Facts) -> Broken | None:
    return _order(case, facts["whole"]) or _order(case, facts["new"], " (at the first save, where no old one is)")


def _order(case: Case, facts: Facts, when: str = "") -> Broken | None:
    """Data to the disk, then the name, then the folder."""
    if broken := _misplaced(case, facts):
        return Broken(broken.clause, broken.sentence + when, broken.measured, broken.expected)
    return None


def _misplaced(case: Case, facts: Facts) -> Broken | None:
    notes, folder = facts["notes"], facts["folder"]
    notes = notes[: next((place for place, note in enumerate(notes) if note["what"] == "returned"), None)]
    moved = [(place, note["cookie"]) for place, note in _entries(facts)
             if note["event"] == "moved to" and note["name"] == case["name"]]  # fmt: skip
    renames = [note for note in notes if note["what"] == "rename" and note["target"].endswith(f"/{case['name']}")]
    from_here = {note["cookie"]: note["name"] for _, note in _entries(facts) if note["event"] == "moved from"}
    opened = [note["path"] for note in notes if note["what"] == "open" and os.path.isabs(note["path"])]
    opened = [path for path in opened if os.path.realpath(path) != folder]  # (O_TMPFILE: a file in it without a name)
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
    if _late(facts, notes[:at]):
        return Broken("value:flushed", "bytes are written after the fsync: sync when all is written")
    ours = facts["inode of the folder"]
    places = [p for p, n in enumerate(notes) if n["what"] == "sync" or (n["what"] == "fsync" and n["ino"] == ours)]
    if not places:
        return Broken("value:folder", "the folder is not synced: the new name may be lost in a power cut")
    if places[-1] < at:
        return Broken("value:folder", "the folder is synced before the rename: the new name is not in it yet")
    return None


def _late(facts: Facts, notes: Notes) -> bool:
    """Whether the file was written to after it was synced for the last time, if it was."""
    synced = [note["written"] for note in notes if note["what"] == "fsync" and note["ino"] == facts["inode"]]
    return bool(synced) and synced[-1] < facts["written"]


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
    for kill in [*facts["kills"], *facts["first kills"]]:
        first = kill in facts["first kills"]
        if (kill["file"] == "nothing" and first) or kill["file"] == "new":
            continue
        if kill["file"] == "nothing":
            words = f"killed {kill['where']}, there is no file under the name: the old one went before the new came"
            return Broken("value:nothing", words)
        if kill["file"] != "old":
            gone = "" if first else ", and the old one is gone"
            words = f"killed {kill['where']}, the file under the final name is half a file{gone}: "
            named = any(
                note["name"] == case["name"] and note["event"] == "moved to" for _, note in _entries(facts["whole"])
            )
            why = "were all bytes written before it was renamed?" if named else "write to another name first"
            return Broken("value:half", words + why)
    return None


def _writers(case: Case, facts: Facts) -> Broken | None:
    """What is too quick to be caught half done: the final name is written to, or is gone for a moment."""
    events, new = (
        {note["event"] for _, note in _entries(facts[which]) if note["name"] == case["name"]}
        for which in ("whole", "new")
    )
    if new & {"changed", "closed after writing"} or events & {"made", "changed", "closed after writing"}:
        words = "save writes to the final name itself: a copy can be killed half done, a rename cannot"
        return Broken("value:copied", words)
    if events & {"removed", "moved from"}:
        words = (
            "for a moment there is no file under the name: the old one went before the new came. os.replace does both"
        )
        return Broken("value:gone", words)
    return None


def _full(case: Case, facts: Facts) -> Broken | None:
    for full in [*facts["full"], facts["sync"], facts["folder sync"]]:
        where, by_sync, folder = f"on {full['where']}", "fsync" in full["where"], full is facts["folder sync"]
        if by_sync and full["ended"] == 0 and full["file"] == "new" and not _uses_fsync(facts, folder):
            continue
        if full["ended"] == 0:
            return Broken("value:swallowed", f"{where} save returns as if all were well: let the error out")
        if full["ended"] != FAILED:
            return Broken("value:swallowed", f"{where} save does not raise", f"ended with {full['ended']}", "an error")
        if full["file"] != "old" and not folder:
            return Broken("value:lost", f"{where} the old checkpoint is lost", full["file"], "old")
        if full["others"] and not by_sync:
            words = f"{where} the half-written file stays and takes the room"
            return Broken("value:room", words, ", ".join(full["others"]), "nothing")
    return None


def _uses_fsync(facts: Facts, folder: bool) -> bool:
    return any(note["what"] == "fsync" and note["folder"] == folder for note in facts["whole"]["notes"])


def _errors(case: Case, facts: Facts) -> Broken | None:
    for found in facts["errors"]:
        error = f"a {found['where']} in the middle of a save"
        if found["ended"] != FAILED:
            words = f"{error} does not come out: whoever called it believes that all is well"
            return Broken("value:swallowed", words, f"ended with {found['ended']}", "an error")
        if found["kinds"] != [found["where"]]:
            words = f"{error} comes out as another error"
            return Broken("value:swallowed", words, ", ".join(found["kinds"]), found["where"])
        if found["file"] != "old":
            return Broken("value:lost", f"after {error} the old checkpoint is lost", found["file"], "old")
    return None


def _left(case: Case, facts: Facts) -> Broken | None:
    """What a save has changed around it, above all if it failed."""
    for found in (facts["first"], facts["whole"], *facts["full"], facts["sync"], *facts["errors"]):
        if found["left"]:
            when = f"after an error ({found['where']})" if "where" in found else "after a save"
            words = f"{when}, save leaves {found['left'][0]} other than before: put back what you change, in `finally`"
            return Broken("value:left", words)
    return None


def _bare(case: Case, facts: Facts) -> Broken | None:
    paths = {
        "bare": ("", "a name without a folder", ': os.path.dirname gives "" for it, and that is no folder'),
        "relative": ("run/", "a path that begins in the current folder", ""),
    }
    for which, (folder, what, hint) in paths.items():
        found = facts[which]
        if found["ended"] == 0 and found["file"] == "new":
            if broken := _order(case, found, f" (with {what})"):
                return broken
            continue
        why = f" ({found['failed']['sentence'][:150]})" if found["failed"] else ""
        words = f'save(state, "{folder}{case["name"]}"), {what}, fails{hint}{why}'
        measured = f"ended with {found['ended']}, the file is {found['file']}"
        return Broken("value:bare", words, measured, "the new state in the file's folder")
    return None


def _litter(case: Case, facts: Facts) -> Broken | None:
    if left := len(facts["litter"]["others"]):
        words = f"after {LITTER} kills and a whole save, half-written files are left: each kill leaves one more"
        return Broken("value:litter", words, f"{left} files", "0")
    if facts["litter"]["file"] != "new":
        words = "after a kill in the save of a larger state, the next save is wrong: is the old half-written file "
        return Broken("value:litter", f"{words}emptied before it is written again?", facts["litter"]["file"], "new")
    if not all(found["neighbours"] for found in (facts["litter"], facts["bare"], facts["relative"], *facts["full"])):
        return Broken("value:neighbours", "save removes or changes files of somebody else in the folder")
    return None
