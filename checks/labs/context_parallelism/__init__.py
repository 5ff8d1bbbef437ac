"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

blocks.py  merge: attention over several blocks of keys; ring_attention: blocks travel, while a rank computes
pieces.py  zigzag: which tokens a rank has, and the way back; training_step: labels, positions, loss of a cut sequence
"""

from checks.labs.context_parallelism.blocks import merge, ring_attention
from checks.labs.context_parallelism.pieces import training_step, zigzag

EXERCISES = [merge, ring_attention, zigzag, training_step]
