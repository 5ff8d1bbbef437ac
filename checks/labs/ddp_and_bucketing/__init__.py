"""The exercises of this lab: DistributedDataParallel, one property after the other (see ``checks/engine``).

hooks.py         overlap: the same start, and an all-reduce in every hook
accumulating.py  no_sync: micro-batches in silence
parts.py         unused: parts that not every rank uses
training.py      what they share, and with the lab on buckets and overlap; networks.py: models
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.ddp_and_bucketing import accumulating, hooks, parts

RANKS = (3, 2)


@exercise(title="Same start, gradients on their way", difficulty=2, minutes=35, official=hooks.OFFICIAL)
def overlap(broadcast_state: Any, Overlapped: Any) -> dict[str, Any]:
    """Judge ``broadcast_state(model)``, and the class ``Overlapped(model)`` with its method ``finish()``."""
    return judge(hooks.OFFICIAL, hooks.play, hooks.CASES, broadcast_state, Overlapped, ranks=RANKS)


@exercise(title="no_sync", difficulty=2, minutes=20, official=accumulating.OFFICIAL)
def no_sync(Accumulating: Any) -> dict[str, Any]:
    """Judge the class ``Accumulating(model)`` with its methods ``finish()`` and ``no_sync()``."""
    return judge(accumulating.OFFICIAL, accumulating.play, accumulating.CASES, Accumulating, ranks=RANKS)


@exercise(title="Unused parameters", difficulty=2, minutes=25, official=parts.OFFICIAL)
def unused(average_used: Any) -> dict[str, Any]:
    """Judge ``average_used(model)``, for models of which each rank uses another part."""
    return judge(parts.OFFICIAL, parts.play, parts.CASES, average_used, ranks=RANKS)
