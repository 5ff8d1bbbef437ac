"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

merging.py  merge: attention over several blocks of keys, out of what each of them gives
ring.py     ring_attention: keys and values travel, while a rank computes
balance.py  zigzag: which tokens a rank has, and the way back
cuts.py     training_step: labels, positions and the loss of a sequence that is cut
"""

from checks.labs.context_parallelism.balance import zigzag
from checks.labs.context_parallelism.cuts import training_step
from checks.labs.context_parallelism.merging import merge
from checks.labs.context_parallelism.ring import ring_attention

EXERCISES = [merge, ring_attention, zigzag, training_step]
