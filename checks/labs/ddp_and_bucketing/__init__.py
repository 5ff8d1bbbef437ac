"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

hooks.py         overlap: the same start, and an all-reduce in every hook
accumulating.py  no_sync: micro-batches in silence
parts.py         unused: parts that not every rank uses
training.py      what they share with the lab on buckets and overlap: a model, and steps of training that are watched
"""

from checks.labs.ddp_and_bucketing.accumulating import no_sync
from checks.labs.ddp_and_bucketing.hooks import overlap
from checks.labs.ddp_and_bucketing.parts import unused

EXERCISES = [overlap, no_sync, unused]
