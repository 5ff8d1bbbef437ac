"""What trainings have done, in whichever process of Ray they ran: each writes a line into a file that all share.

Ray's workers get this module by value (see ``rays.py``) and import but light ones: with torch each would start late.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from checks.engine.plain import from_array
from checks.engine.verdicts import Wrong

Config = dict[str, Any]
START, EPOCHS = 2.3, 30  # the loss before the first epoch; how long a whole training is
ENDLESS, MANY = 5, 500  # so many times the epochs that are enough, or so many trainings, and the search is ended


def curve(config: Config, epochs: int) -> float:
    """A loss, lowest at a learning rate of 0.02 and a batch size of 32. It is higher after odd numbers of epochs, of
    which all rungs are."""
    if not config["lr"] > 0:
        return math.nan
    decades, doublings = math.log10(config["lr"] / 0.02), math.log2(config["batch_size"] / 32)
    final = min(0.1 + 0.1 * decades**2 + 0.02 * abs(doublings), START)
    return final + (START - final) * math.exp(-0.25 * epochs) + 0.4 * (epochs % 2)


@dataclass(frozen=True)
class Notes:
    """The file, by its path, so that it can be pickled."""

    path: str

    @contextlib.contextmanager
    def open(self) -> Iterator[list[dict[str, Any]]]:
        """All notes while nobody else writes. What is appended to the list is written down."""
        with open(self.path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            notes = [json.loads(line) for line in file]
            known = len(notes)
            try:
                yield notes
            finally:
                file.writelines(f"{json.dumps(note)}\n" for note in notes[known:])

    def read(self) -> list[dict[str, Any]]:
        """All notes.

        Raises:
            Wrong: the first thing that was refused.
        """
        with self.open() as notes:
            for note in notes:
                if "refused" in note:
                    raise Wrong(note["refused"])
        return notes


def misused(notes: list[dict[str, Any]], sentence: str) -> NoReturn:
    """In a process of Ray: end what runs there, and let the check say why."""
    notes.append({"refused": sentence})
    raise RuntimeError(sentence)


def is_config(config: Any) -> bool:
    numbers = isinstance(config, dict) and set(config) == {"lr", "batch_size"}
    return numbers and all(isinstance(one, int | float) and not isinstance(one, bool) for one in config.values())


@dataclass(frozen=True)
class Training:
    """``train(config, epochs, checkpoint=None)`` for learners: gives a loss and a checkpoint. Can be pickled.

    Args:
        most_epochs: so many are enough for a trial.
        diverging: so many trainings that begin first have a loss of nan.
    """

    notes: Notes = field(repr=False)
    most_epochs: int
    diverging: int = 0

    def __call__(self, config: Config, epochs: int = 1, checkpoint: str | None = None) -> tuple[float, str]:
        """Train a configuration so many epochs more, from a checkpoint or anew.

        Returns:
            The loss after these epochs, and a checkpoint to go on from.
        """
        if isinstance(config, dict):
            config = {name: from_array(value) for name, value in config.items()}
        with self.notes.open() as notes:
            if not is_config(config):
                misused(notes, f"a configuration is a dict with lr and batch_size, two numbers, not {str(config)[:80]}")
            before = {"trial": uuid.uuid4().hex[:8], "config": config, "total": 0, "checkpoint": None}
            before = next((note for note in [before, *notes] if note["checkpoint"] == checkpoint), {"config": None})
            if before["config"] != config:
                misused(notes, f"{config} was given the checkpoint of another configuration: trials begin without")
            trial, total = before["trial"], before["total"] + int(epochs)
            if total > ENDLESS * self.most_epochs or len(notes) > MANY:
                misused(notes, f"{total} epochs and more, where {self.most_epochs} are enough: does each trial end?")
            loss = math.nan if len(notes) < self.diverging else curve(config, total)
            checkpoint = f"trial {trial} after {total} epochs"
            call = {"trial": trial, "config": config, "epochs": int(epochs), "total": total, "loss": loss}
            notes.append(call | {"pid": os.getpid(), "checkpoint": checkpoint})
        return loss, checkpoint

    def whole(self, config: Config) -> float:
        """``objective(config)`` for learners: the loss of a whole training, nan if it has diverged."""
        return self(config, EPOCHS)[0]
