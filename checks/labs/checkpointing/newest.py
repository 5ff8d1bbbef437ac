"""Check of ``train_on_ranks``: kills on two ranks, damaged checkpoints, and which files are written and stay."""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from checks.engine import Reference, refuse
from checks.labs.checkpointing.killing import Life, first_failed
from checks.labs.checkpointing.trainings import Kill, compare, first_wrong, plan, run, uninterrupted

OFFICIAL = Reference("checkpointing", "train_on_ranks")
WORDS = {"a changed byte": "changed in one byte"}
TROUBLE = ["cut off", "a changed byte", "unreadable on rank 1", "empty"]
CASES = [
    {"steps": 40, "every": 5, "kills": 12, "trouble": TROUBLE},
    {"steps": 12, "every": 3, "kills": 2, "trouble": []},
]
RANKS, KEEP, PAUSE = 2, 3, 0.15  # seconds that a rename takes longer where waiting is looked at
Checkpoints = dict[int, Path]


def play(case: dict[str, Any], train: Any) -> dict[str, Any]:
    right, troubles, spoilt = uninterrupted(case, RANKS), case["trouble"][::-1], set[bytes]()
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        os.chdir(root)
        os.mkdir("whole")
        lives = run(train, case, f"{root}/whole", ranks=RANKS, pauses=PAUSE)
        _together(lives, right, None, "without any kill, ")
        _waits(lives, case)
        _files(f"{root}/whole", case)
        os.mkdir(folder := f"{root}/killed")
        last, done, kills = "", 0, plan(case, RANKS)
        for number, kill in enumerate([*kills, None]):
            good, trouble = _good(folder, spoilt), ""
            if number > len(kills) - 2 * len(case["trouble"]) and number % 2 and len(good) > 1 and troubles:
                trouble = troubles.pop()
                spoilt |= _damage(good[max(good)], trouble)
            unreadable = str(good[max(good)]) if "rank 1" in trouble else ""
            starts = {max(_good(folder, spoilt), default=0)}
            starts |= {sorted(good)[-2]} if unreadable else set()
            lives = run(train, case, folder, kill, RANKS, unreadable=unreadable)
            before = f"started again after a kill {last}: " if last else ""
            before = f"started again with the newest checkpoint {WORDS.get(trouble, trouble)}: " if trouble else before
            _start(lives, starts, before, trouble, done)
            _together(lives, right, kill, before)
            refuse(kill and not any(life.killed for life in lives), "the training was over before all kills")
            done, last = max([done, *(n["number"] + 1 for life in lives for n in life.of("done"))]), str(kill or "")
        _files(folder, case)
        os.chdir("/")
    refuse(troubles, "the training was over before all checkpoints were damaged")
    return {"kills": case["kills"], "damaged checkpoints": len(case["trouble"]), "steps": f"{done}, all bits equal"}


def _together(lives: list[Life], right: Any, kill: Kill | None, before: str) -> None:
    """No rank fails, and each step begins as without a kill. (Whose partner was killed hears that from gloo.)"""
    failed = [life for life in lives if life.failure]
    if kill and lives[kill.rank].killed:
        failed = [life for life in failed if life.failure and "gloo" not in life.failure["sentence"]]
    if first := first_failed(failed):
        first.raise_failure(before if kill or "again" in before else "")
    words = "rank 1 writes files as well: rank 0 alone writes"
    refuse(not kill and lives[1].killed and not failed, words)
    for rank, life in sorted(enumerate(lives), key=lambda one: first_wrong(one[1], right[one[0]])):
        compare(life, right[rank], before, rank)


def _start(lives: list[Life], starts: set[int], before: str, trouble: str, done: int) -> None:
    first = [note["number"] for life in lives for note in life.of("step")[:1]]
    words = f"{before}it goes on from it all the same, with step {first and max(first)}: does torch.load notice?"
    refuse(first and trouble and max(first) > max(starts), words, expected=f"step {max(starts)}")
    words = f"{before}it begins with step {first and first[0]}, not with the newest good checkpoint"
    refuse(len(set(first)) == 1 and first[0] not in starts, words, expected=f"step {max(starts)}")


def _waits(lives: list[Life], case: dict[str, Any]) -> None:
    """No rank takes the step after a save, or returns, before rank 0 has given the file its name."""
    renames = [note["t"] for note in lives[0].of("files") if note["name"] == "rename"]
    for saved, at in zip(range(case["every"], case["steps"] + 1, case["every"]), renames, strict=False):
        early = any(note["number"] >= saved and note["t"] < at for note in lives[1].of("step"))
        refuse(early, f"rank 1 goes on with step {saved} while rank 0 still writes: let all wait at a barrier")
        words = "rank 1 returns while rank 0 still writes the last checkpoint: let all wait at a barrier"
        refuse(any(note["t"] < at for note in lives[1].of("end")), words)


def _files(folder: str, case: dict[str, Any]) -> None:
    files, last = sorted(os.listdir(folder)), range(case["steps"], 0, -case["every"])
    steps = sorted((int(one[5:-3]) for one in files if re.fullmatch(r"step-\d+\.pt", one)), reverse=True)
    words = "checkpoints are to be named by the steps that are done: step-5.pt, step-10.pt, …"
    refuse(not steps or not {*steps} <= {*last}, words, measured=", ".join(files[:3]))
    refuse(len(steps) > KEEP, f"old checkpoints stay: keep the last {KEEP}", measured=len(steps))
    refuse(len(steps) < 2, "one checkpoint is none: if it is damaged, nothing is left", measured=1, expected="2 or 3")
    words = "the last checkpoints are to stay, in the order of their numbers, and older ones go"
    refuse(steps != [*last][: len(steps)], words, measured=steps)
    others = [one for one in files if not re.fullmatch(r"step-\d+\.pt", one)]
    words = "files stay beside the checkpoints, of your own or half-written ones that kills have left"
    refuse(others, words, measured=", ".join(others[:3]), expected="none")


def _good(folder: str, spoilt: set[bytes]) -> Checkpoints:
    """The checkpoints that are as they were written, by step."""
    found = {}
    for path in Path(folder).glob("step-*.pt"):
        content = path.read_bytes()
        if content and content not in spoilt and path.stem[5:].isdigit() and _whole(path, content):
            found[int(path.stem[5:])] = path
    return found


def _whole(path: Path, content: bytes) -> bool:
    try:
        return not content.startswith(b"PK") or zipfile.ZipFile(path).testzip() is None
    except (zipfile.BadZipFile, EOFError, OSError):
        return False


def _damage(path: Path, how: str) -> set[bytes]:
    content = bytearray(path.read_bytes())
    if how == "a changed byte":
        place = len(content) // 2
        if content.startswith(b"PK"):  # in the largest tensor
            one = max(zipfile.ZipFile(path).infolist(), key=lambda one: one.file_size * ("/data/" in one.filename))
            start = one.header_offset
            names, extra = (int.from_bytes(content[start + at : start + at + 2], "little") for at in (26, 28))
            place = start + 30 + names + extra + one.file_size // 2
        content[place] ^= 0x40
    elif how in ("cut off", "empty"):
        content = content[: len(content) // 2 if how == "cut off" else 0]
    else:
        return set()
    path.write_bytes(content)
    return {bytes(content)}
