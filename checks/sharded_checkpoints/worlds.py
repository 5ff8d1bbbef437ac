"""A world of processes, and how many bytes each of them gets."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from checks.checkpointing.killing import Life, Notes, first_failed, join, live
from checks.contracts import Case, Facts
from checks.verdicts import Wrong

SECONDS = 15  # for a world of processes


def counting() -> Any:
    """For ``with``: ``received``, bytes that collectives bring this rank; ``largest``, of a tensor that is made."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counting(TorchDispatchMode):
        received = largest = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.__name__:
                self.received += sum(one.nbytes for one in tree_leaves(found) if isinstance(one, torch.Tensor))
            made = [one.nbytes for one in tree_leaves(found) if type(one) is torch.Tensor]
            self.largest = max(self.largest, *made, 0)
            return found

    return Counting()


class World:
    """So many processes of one group; what they note, and which of them failed first."""

    def __init__(self, case: Case, ranks: int, folder: Path, body: Any) -> None:
        store = tempfile.mktemp(dir=os.getcwd())

        def one(rank: int) -> Any:
            def run(note: Notes) -> None:
                import torch

                torch.set_num_threads(1)
                join(store, rank, ranks)
                body(case, rank, note)

            return run

        self.lives: list[Life] = []  # none: they stood still, and were killed
        with contextlib.suppress(Wrong):
            self.lives = live(*(one(rank) for rank in range(ranks)), seconds=SECONDS)

    def told(self) -> Facts:
        notes, first = [life.of("told") for life in self.lives], first_failed(self.lives)
        return {
            "failed": first and first.failure,
            "ended": [life.ended for life in self.lives] or [None],
            "notes": [told[0] if told else {} for told in notes],
        }
