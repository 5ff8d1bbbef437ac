"""The exercises of this lab: DistributedDataParallel, one property after the other (see ``checks/core``).

means.py         average: the same start, the same gradients
hooks.py         overlap: an all-reduce in every hook
bucketing.py     buckets: which parameters, when
accumulating.py  no_sync: micro-batches in silence
parts.py         unused: parts that not every rank uses
finding.py       unused_overlap: such parts found in the graph, so that buckets go while backward computes
training.py      what all of them share
"""

from __future__ import annotations

from typing import Any

from checks.core import judge
from checks.ddp_and_bucketing import accumulating, bucketing, finding, hooks, means, parts
from checks.framework import exercise

RANKS = (3, 2)


@exercise(title="Same start, same gradients", difficulty=1, minutes=20, official=means.OFFICIAL)
def average(broadcast_state: Any, average_gradients: Any) -> dict[str, Any]:
    """Judge ``broadcast_state(model)`` and ``average_gradients(model)``: DDP without overlap."""
    return judge(means.OFFICIAL, means.play, means.CASES, broadcast_state, average_gradients, ranks=RANKS)


@exercise(title="Overlap with hooks", difficulty=2, minutes=25, official=hooks.OFFICIAL)
def overlap(Overlapped: Any) -> dict[str, Any]:
    """Judge the class ``Overlapped(model)`` with its method ``finish()``: one all-reduce for each parameter."""
    return judge(hooks.OFFICIAL, hooks.play, hooks.CASES, Overlapped, ranks=RANKS)


@exercise(title="Buckets", difficulty=3, minutes=40, official=bucketing.OFFICIAL)
def buckets(Bucketed: Any) -> dict[str, Any]:
    """Judge the class ``Bucketed(model, cap)`` with its method ``finish()``."""
    return judge(bucketing.OFFICIAL, bucketing.play, bucketing.CASES, Bucketed, ranks=RANKS)


@exercise(title="no_sync", difficulty=2, minutes=20, official=accumulating.OFFICIAL)
def no_sync(Accumulating: Any) -> dict[str, Any]:
    """Judge the class ``Accumulating(model)`` with its methods ``finish()`` and ``no_sync()``."""
    return judge(accumulating.OFFICIAL, accumulating.play, accumulating.CASES, Accumulating, ranks=RANKS)


@exercise(title="Unused parameters", difficulty=2, minutes=25, official=parts.OFFICIAL)
def unused(average_used: Any) -> dict[str, Any]:
    """Judge ``average_used(model)``, for models of which each rank uses another part."""
    return judge(parts.OFFICIAL, parts.play, parts.CASES, average_used, ranks=RANKS)


@exercise(title="Unused parameters, overlap kept", difficulty=3, minutes=35, official=finding.OFFICIAL)
def unused_overlap(FindingUnused: Any) -> dict[str, Any]:
    """Judge the class ``FindingUnused(model, buckets)`` with its methods ``prepare(loss)`` and ``finish()``."""
    return judge(finding.OFFICIAL, finding.play, finding.CASES, FindingUnused, ranks=RANKS)
