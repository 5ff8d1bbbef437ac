"""The exercises of this lab: shards cut anew by hand, DCP in use, a save in the background that is safe.

resharding.py     reshard: which bytes are read; sharded_store.py has the files
backgrounds.py    in_background: saves while the training goes on
thread_errors.py  errors: what write raises; slow_disk.py has a write that waits for the check
other_ranks.py    elsewhere: saved on N ranks with DCP, loaded on M
"""

from __future__ import annotations

from typing import Any

from checks import engine as core
from checks.engine.exercises import exercise
from checks.engine.processes import run
from checks.labs.sharded_checkpoints import backgrounds, other_ranks, resharding, thread_errors


@exercise(title="A resharding loader", difficulty=3, minutes=35, official=resharding.OFFICIAL)
def reshard(load_rows: Any) -> dict[str, Any]:
    """Judge ``load_rows(store, rank, world_size)``: right rows, and no byte too many."""
    return core.judge(resharding.OFFICIAL, resharding.play, resharding.CASES, load_rows)


@exercise(title="A save in the background", difficulty=2, minutes=25, official=backgrounds.OFFICIAL)
def in_background(AsyncSaver: Any) -> dict[str, str]:
    """Judge the class ``AsyncSaver(write)`` with ``save(state, path)`` and ``wait()``, on a disk that waits."""
    for case in backgrounds.CASES:
        run(backgrounds.play, case, AsyncSaver)
    return {"saves": "each file holds the state of its call, though the training went on at once"}


@exercise(title="No error is lost", difficulty=2, minutes=15, official=thread_errors.OFFICIAL)
def errors(AsyncSaver: Any) -> dict[str, str]:
    """Judge the same class with a ``write`` that fails."""
    run(thread_errors.play, AsyncSaver)
    return {"errors that came out": ", ".join(type(error).__name__ for error, _, _ in thread_errors.CASES)}


@exercise(title="DCP, from N ranks to M", difficulty=2, minutes=25, official=other_ranks.OFFICIAL)
def elsewhere(save: Any, load: Any) -> dict[str, str]:
    """Judge ``save(model, optimizer, folder)`` on N ranks and ``load(model, optimizer, folder)`` on M."""
    return other_ranks.judge(save, load)
