"""The exercises of this lab: buckets, and unused parameters that do not hold them up (see ``checks/engine``).

bucketing.py  buckets: which parameters, when
finding.py    unused_overlap: unused parameters found in the graph, so that buckets go while backward computes
Models and watched steps are those of ``checks/labs/ddp_and_bucketing``.
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.buckets_and_overlap import bucketing, finding

RANKS = (3, 2)


@exercise(title="Buckets", difficulty=3, minutes=40, official=bucketing.OFFICIAL)
def buckets(Bucketed: Any) -> dict[str, Any]:
    """Judge the class ``Bucketed(model, cap)`` with its method ``finish()``."""
    return judge(bucketing.OFFICIAL, bucketing.play, bucketing.CASES, Bucketed, ranks=RANKS)


@exercise(title="Unused parameters, overlap kept", difficulty=3, minutes=35, official=finding.OFFICIAL)
def unused_overlap(FindingUnused: Any) -> dict[str, Any]:
    """Judge the class ``FindingUnused(model, buckets)`` with its methods ``prepare(loss)`` and ``finish()``."""
    return judge(finding.OFFICIAL, finding.play, finding.CASES, FindingUnused, ranks=RANKS)
