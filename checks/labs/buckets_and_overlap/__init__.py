"""The exercises of this lab: buckets, and unused parameters that do not hold them up (see ``checks/engine``).

bucketing.py  buckets: which parameters, when
finding.py    unused_overlap: unused parameters found in the graph, so that buckets go while backward computes
Models and watched steps are those of ``checks/labs/ddp_and_bucketing``.
"""

from checks.labs.buckets_and_overlap.bucketing import buckets
from checks.labs.buckets_and_overlap.finding import unused_overlap

EXERCISES = [buckets, unused_overlap]
