"""The exercises of this lab: data parallelism out of four steps.

scattering.py   scatter: rows to their GPUs; replicating.py replicate: the model's tensors, on all GPUs
forwards.py     forward: all four steps; losses.py loss: the loss where the logits are; steps.py: what both share
gathering.py    gather: a backward of one's own
forgetting.py   forgotten: a fault to find, state that replicas lose
models.py       GPUs for a case, a model, and its rows
"""

from checks.labs.data_parallel_internals.forgetting import forgotten
from checks.labs.data_parallel_internals.forwards import forward
from checks.labs.data_parallel_internals.gathering import gather
from checks.labs.data_parallel_internals.losses import loss
from checks.labs.data_parallel_internals.replicating import replicate
from checks.labs.data_parallel_internals.scattering import scatter

EXERCISES = [scatter, replicate, forward, loss, gather, forgotten]
