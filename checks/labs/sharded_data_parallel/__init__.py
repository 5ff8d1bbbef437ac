"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

reducing.py     reduce_gradients: each rank gets the mean of its own shard
optimizing.py   sharded_optimizer: state for this shard only
clipping.py     clip: by the norm of all shards
linear.py       sharded_linear: a weight that is there only while it is used
prefetching.py  prefetch: the next unit is on its way; on a simulated timeline
starting.py     start: from meta, by fully_shard
layers.py       what they share: drawn layers, shards with their padding
"""

from checks.labs.sharded_data_parallel.clipping import clip
from checks.labs.sharded_data_parallel.linear import sharded_linear
from checks.labs.sharded_data_parallel.optimizing import sharded_optimizer
from checks.labs.sharded_data_parallel.prefetching import prefetch
from checks.labs.sharded_data_parallel.reducing import reduce_gradients
from checks.labs.sharded_data_parallel.starting import start

EXERCISES = [reduce_gradients, sharded_optimizer, clip, sharded_linear, prefetch, start]
