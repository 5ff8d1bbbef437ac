"""The exercises of this lab: shards cut anew by hand, DCP in use, a save in the background that is safe.

resharding.py     reshard: which bytes are read
backgrounds.py    in_background: saves while the training goes on; slow_disk.py waits for the check, states.py has what
                  is saved, folder_events.py tells what happens to names, background_verdicts.py judges
other_ranks.py    elsewhere: saved on N ranks with DCP, loaded on M; worlds.py has the processes and what they get
"""

from __future__ import annotations

import os
import random
from typing import Any

from checks import core
from checks.contracts import judge
from checks.contracts.judging import SEED
from checks.framework import exercise
from checks.sharded_checkpoints import backgrounds, other_ranks, resharding


@exercise(title="A resharding loader", difficulty=3, minutes=35, official=resharding.OFFICIAL)
def reshard(load_rows: Any) -> dict[str, Any]:
    """Judge ``load_rows(store, rank, world_size)``: right rows, and no byte too many."""
    cases = resharding.cases(random.Random(int(os.environ.get(SEED) or 0)))
    return core.judge(resharding.OFFICIAL, resharding.play, cases, load_rows)


@exercise(title="A save in the background", difficulty=3, minutes=40)
def in_background(AsyncSaver: Any) -> dict[str, Any]:
    """Judge the class ``AsyncSaver(write)`` with ``save(state, path)`` and ``wait()``, on a disk that waits."""
    return judge(backgrounds.CONTRACT, AsyncSaver)


@exercise(title="DCP, from N ranks to M", difficulty=2, minutes=25)
def elsewhere(save: Any, load: Any) -> dict[str, Any]:
    """Judge ``save(model, optimizer, folder)`` on N ranks and ``load(model, optimizer, folder)`` on M."""
    return judge(other_ranks.CONTRACT, save, load)
