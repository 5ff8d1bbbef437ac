"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

cutting.py   balanced_stages: where to cut, and each stage on its GPU
order.py     order_1f1b: who does what, in which order
steps.py     gpipe and one_f_one_b: a step on simulated GPUs
ranks.py     on_real_ranks: a stage on each rank, by messages
"""

from checks.labs.model_parallelism.cutting import balanced_stages
from checks.labs.model_parallelism.order import order_1f1b
from checks.labs.model_parallelism.ranks import on_real_ranks
from checks.labs.model_parallelism.steps import gpipe, one_f_one_b

EXERCISES = [balanced_stages, gpipe, order_1f1b, one_f_one_b, on_real_ranks]
