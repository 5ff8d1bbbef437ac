"""What trainings have done, in whichever process they ran: each writes a line into a file that all share.

Ray's workers get this module by value (see ``rays.py``) and import but light ones: with torch each would start late.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from checks.engine.plain import from_array
from checks.engine.verdicts import Wrong

Config = dict[str, Any]
EPOCHS = 30  # of a whole training


def curve(config: Config, epochs: int) -> float:
    """A loss, lowest at a learning rate of 0.02 and a batch size of 32. It is higher after odd numbers of epochs, of
    which all rungs are."""
    decades, doublings = math.log10(max(config["lr"], 1e-9) / 0.02), math.log2(config["batch_size"] / 32)
    final = min(0.1 + 0.1 * decades**2 + 0.02 * abs(doublings), 2.3)
    return final + (2.3 - final) * math.exp(-0.25 * epochs) + 0.4 * (epochs % 2)


@contextlib.contextmanager
def opened(path: str) -> Iterator[list[dict[str, Any]]]:
    """All notes while nobody else writes. What is appended to the list is written down."""
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        notes = [json.loads(line) for line in file]
        known = len(notes)
        try:
            yield notes
        finally:
            file.writelines(f"{json.dumps(note)}\n" for note in notes[known:])


def read(path: str) -> list[dict[str, Any]]:
    """All notes; or the first thing that was refused, which is raised."""
    with opened(path) as notes:
        for note in notes:
            if "refused" in note:
                raise Wrong(note["refused"])
    return notes


def misused(notes: list[dict[str, Any]], sentence: str) -> NoReturn:
    """End what runs in this process, which may be one of Ray's, and let the check say why."""
    notes.append({"refused": sentence})
    raise Wrong(sentence)


def is_config(config: Any) -> bool:
    numbers = isinstance(config, dict) and set(config) == {"lr", "batch_size"}
    return numbers and all(isinstance(one, int | float) and not isinstance(one, bool) for one in config.values())


@dataclass(frozen=True)
class Training:
    """``train(config, epochs, checkpoint=None)`` for learners: a loss and a checkpoint to go on from. Can be pickled.

    Args:
        path: of the notes.
        diverging: so many trainings that begin first have a loss of nan.
        loss: of a configuration after so many epochs.
    """

    path: str
    diverging: int = 0
    loss: Callable[[Config, int], float] = curve

    def __call__(self, config: Config, epochs: int = 1, checkpoint: str | None = None) -> tuple[float, str]:
        """Train a configuration so many epochs more, from a checkpoint or anew."""
        if isinstance(config, dict):
            config = {name: from_array(value) for name, value in config.items()}
        with opened(self.path) as notes:
            if not is_config(config):
                misused(notes, f"a configuration is a dict with lr and batch_size, two numbers, not {str(config)[:80]}")
            before = {"trial": uuid.uuid4().hex[:8], "config": config, "total": 0, "checkpoint": None}
            before = next((note for note in [before, *notes] if note["checkpoint"] == checkpoint), {"config": None})
            if before["config"] != config:
                misused(notes, f"a trial goes on from a checkpoint that is not its own: that of {before['config']}")
            total = before["total"] + int(epochs)
            loss = math.nan if len(notes) < self.diverging else self.loss(config, total)
            checkpoint = f"trial {before['trial']} after {total} epochs"
            note = before | {"epochs": int(epochs), "total": total, "loss": loss, "checkpoint": checkpoint}
            notes.append(note | {"pid": os.getpid()})
        return loss, checkpoint

    def whole(self, config: Config) -> float:
        """``objective(config)`` for learners: the loss of a whole training, nan if it has diverged."""
        return self(config, EPOCHS)[0]
