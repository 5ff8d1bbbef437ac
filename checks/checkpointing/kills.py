"""Twenty lives of a training: when each of them is ended, and what happens to its checkpoints before the next."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from typing import Any

import torch

from checks.checkpointing.life_verdicts import own_failure
from checks.checkpointing.lives import Life, live
from checks.checkpointing.saved_files import checkpoints_in, damage, good
from checks.checkpointing.watched import MOMENTS, Kill, again, reference, trained
from checks.contracts import Case


def plan(case: Case) -> list[Kill]:
    """Kills at random places, the same ones for the same case."""
    chance, ranks = random.Random(case["seed"]), case["training ranks"]
    kills = []
    steps = range(2, case["steps"] - case["every"])  # who outlives a kill in the last save has none of the later ones
    for number, step in enumerate(sorted(chance.sample(steps, case["kills"]))):
        if number == 0:
            kills.append(Kill(0, event=1))  # in the very first save: it leaves half a file, and no checkpoint
        elif number % 4 == 1:
            kills.append(Kill(step, event=STEPS_OF_A_SAVE[number // 4]))
        elif number % 4 == 3:
            kills.append(Kill(step, byte=chance.randrange(5000)))
        else:
            kills.append(Kill(step, chance.choice(MOMENTS), rank=chance.randrange(ranks)))
    return kills


#: Before which of them a save is killed; at last when the new one has its name, and the oldest is about to go.
STEPS_OF_A_SAVE = (0, 1, 2, 4, 3)
#: How the newest good checkpoint is spoilt, if there is another one, from this life on; "unreadable": on rank 1.
TROUBLE, FIRST_TROUBLE = ("cut off", "a changed byte", "another changed byte", "unreadable", "empty"), 6


def lives(train: Any, case: Case) -> dict[str, Any]:
    """An uninterrupted run, a run with kills, and a start after its end, as plain data."""
    torch.set_num_threads(1)
    ranks, troubles = case["training ranks"], list(TROUBLE) if case["trouble"] == "yes" else []
    spoilt: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        counter = iter(range(1000))

        def folder() -> str:
            path = f"{root}/{next(counter)}"
            os.mkdir(path)
            return path

        def run(kill: Kill | None, where: str, **how: Any) -> list[Life]:
            store = f"{folder()}/store"
            return live(*(trained(train, case, where, store, kill, rank, **how) for rank in range(ranks)))

        where = folder()
        found: dict[str, Any] = {"reference": _plain(live(*(reference(case, rank, where) for rank in range(ranks))))}
        where = folder()
        found["whole"] = {"lives": _plain(run(None, where, alone=ranks > 1)), "files": sorted(os.listdir(where))}
        found["killed"] = []
        if any(life["ended"] != 0 for life in found["whole"]["lives"]):
            return found
        empty, store = [folder() for _ in range(3)], f"{folder()}/store"
        found["again"] = _plain(live(*(again(train, case, empty, store, rank) for rank in range(ranks))))
        where = folder()
        for number, kill in enumerate([*plan(case), None, None]):
            trouble, unreadable = "", None
            whole = [path for path in checkpoints_in(where).values() if good(path, spoilt)]
            if number >= FIRST_TROUBLE and number % 2 == 0 and whole[1:] and troubles:
                trouble = troubles.pop(0)
            if trouble:
                if trouble == "unreadable":
                    unreadable = str(whole[-1])
                else:
                    spoilt.add(damage(whole[-1], trouble))
            there = {step: good(path, spoilt) for step, path in checkpoints_in(where).items()}
            ended = run(kill, where, unreadable=unreadable, slow=bool(trouble))
            told = _plain(ended)
            found["killed"].append(
                {"lives": told, "kill": str(kill) if kill else "", "there": there, "trouble": trouble}
            )
            if not any(life["ended"] in (-signal.SIGKILL, -signal.SIGXFSZ) for life in told) and kill:
                break  # nothing of what follows can be judged
            if own_failure(ended) or any(life.ended is None for life in ended):
                break
        found["files"] = sorted(os.listdir(where))
        return found


def _plain(lives: list[Life]) -> list[dict[str, Any]]:
    return [{"notes": life.notes, "ended": life.ended} for life in lives]
