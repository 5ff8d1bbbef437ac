"""The exercises of this lab: DistributedDataParallel, one property after the other. Each module holds a contract.

averaging.py          average: the same start, the same gradients
overlapping.py        overlap: an all-reduce in every hook
bucketing.py          buckets: which parameters, when; bucket_plans.py computes it
accumulating.py       no_sync: micro-batches in silence
unused_parameters.py  unused: parts that not every rank uses
finding_unused.py     unused_overlap: such parts found in the graph, so that buckets go while backward computes
gradients.py          what all of them share
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.ddp_and_bucketing import (
    accumulating,
    averaging,
    bucketing,
    finding_unused,
    overlapping,
    unused_parameters,
)
from checks.framework import exercise


@exercise(title="Same start, same gradients", difficulty=1, minutes=20)
def average(broadcast_state: Any, average_gradients: Any) -> dict[str, Any]:
    """Judge ``broadcast_state(model)`` and ``average_gradients(model)``: DDP without overlap."""
    return judge(averaging.CONTRACT, broadcast_state, average_gradients)


@exercise(title="Overlap with hooks", difficulty=2, minutes=25)
def overlap(Overlapped: Any) -> dict[str, Any]:
    """Judge the class ``Overlapped(model)`` with its method ``finish()``: one all-reduce for each parameter."""
    return judge(overlapping.CONTRACT, Overlapped)


@exercise(title="Buckets", difficulty=3, minutes=40)
def buckets(Bucketed: Any) -> dict[str, Any]:
    """Judge the class ``Bucketed(model, cap)`` with its method ``finish()``."""
    return judge(bucketing.CONTRACT, Bucketed)


@exercise(title="no_sync", difficulty=2, minutes=20)
def no_sync(Accumulating: Any) -> dict[str, Any]:
    """Judge the class ``Accumulating(model)`` with its methods ``finish()`` and ``no_sync()``."""
    return judge(accumulating.CONTRACT, Accumulating)


@exercise(title="Unused parameters", difficulty=2, minutes=25)
def unused(average_used: Any) -> dict[str, Any]:
    """Judge ``average_used(model)``, for models of which each rank uses another part."""
    return judge(unused_parameters.CONTRACT, average_used)


@exercise(title="Unused parameters, overlap kept", difficulty=3, minutes=35)
def unused_overlap(FindingUnused: Any) -> dict[str, Any]:
    """Judge the class ``FindingUnused(model, buckets)`` with its methods ``prepare(loss)`` and ``finish()``."""
    return judge(finding_unused.CONTRACT, FindingUnused)
