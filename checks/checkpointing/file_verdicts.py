"""Verdicts on the files of a training: how many are written, when, and which of them stay."""

from __future__ import annotations

import re
from typing import Any

from checks.checkpointing.lives import Life
from checks.contracts import Broken, Case

KEEP = 3
STRAY = "a file outside of the folder is written{}: write into the folder only"


class Found(Exception):
    """What is not as it has to be; all else may follow from it."""

    def __init__(self, sentence: str, measured: Any = None, expected: Any = None) -> None:
        super().__init__(sentence)
        self.broken = Broken("value:lives", sentence.rstrip("."), measured, expected)


def on(rank: int, ranks: int) -> str:
    return f" on rank {rank}" if ranks > 1 else ""


def judge_saves(life: Life, most: int, words: str) -> None:
    if (saves := sum(note["saved"] for note in life.of("step"))) > most:
        measured = f"{saves} steps began with a new checkpoint"
        if any(note["threads"] > 1 for note in life.of("step")):
            words = "a step begins while a thread is still writing: wait until the checkpoint has its name"
            raise Found(words, measured, f"{most - 1}")
        raise Found(f"{words}: saving costs time", measured=measured, expected=f"{most - 1}")


def judge_waiting(lives: list[Life]) -> None:
    """No rank takes the step after a save, or returns, before rank 0 has given the file its name."""
    for note in lives[0].of("rename"):
        done = [one["number"] for one in lives[0].of("done") if one["t"] < note["t"]]
        if not (done and re.search(r"/step-\d+\.pt$", note["target"])):
            continue
        saved = max(done) + 1
        for rank, life in enumerate(lives[1:], start=1):
            if any(one["number"] >= saved and one["t"] < note["t"] for one in life.of("step")):
                raise Found(
                    f"rank {rank} goes on with step {saved} while rank 0 still writes: let all wait at a barrier."
                )
            if any(one["t"] < note["t"] for one in life.of("end")):
                raise Found(
                    f"rank {rank} returns while rank 0 still writes the last checkpoint: the job may be ended then, so "
                    "let all wait at a barrier."
                )


def judge_files(files: list[str], case: Case) -> None:
    checkpoints = [name for name in files if re.fullmatch(r"step-\d+\.pt", name)]
    if len(checkpoints) > KEEP:
        raise Found(
            f"old checkpoints stay: keep the last {KEEP}", measured=len(checkpoints), expected=f"at most {KEEP}"
        )
    newest = sorted(range(case["steps"], 0, -case["every"])[: len(checkpoints)])
    if sorted(checkpoints) != sorted(f"step-{step}.pt" for step in newest):
        words = "the last checkpoints are to stay, in the order of their numbers, and older ones go"
        raise Found(words, ", ".join(sorted(checkpoints)), ", ".join(f"step-{step}.pt" for step in newest))
    if len(checkpoints) < min(2, case["steps"] // case["every"]):
        raise Found(
            "one checkpoint is none: if it is damaged, nothing is left", measured=len(checkpoints), expected="2 or 3"
        )
    others = [name for name in files if name not in checkpoints]
    if others:
        raise Found("kills leave half-written files behind", measured=", ".join(others[:3]), expected="none")
