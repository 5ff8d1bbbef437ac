"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

reducing.py     reduce_gradients: each rank gets the mean of its own shard
optimizing.py   sharded_optimizer: state for this shard only
clipping.py     clip: by the norm of all shards
linear.py       sharded_linear: a weight that is there only while it is used
prefetching.py  prefetch: the next unit is on its way; on a simulated timeline
starting.py     start: from meta, by fully_shard
layers.py       what they share: drawn layers, shards with their padding
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.sharded_data_parallel import clipping, linear, optimizing, prefetching, reducing, starting


@exercise(title="Reduce-scatter the gradients", difficulty=1, minutes=20, official=reducing.OFFICIAL)
def reduce_gradients(reduce_gradients: Any) -> dict[str, Any]:
    """Judge ``reduce_gradients(parameters)``, which returns this rank's shard of the mean gradient."""
    return judge(reducing.OFFICIAL, reducing.play, reducing.CASES, reduce_gradients, ranks=(3, 2, 4))


@exercise(title="An optimizer that shards", difficulty=2, minutes=30, official=optimizing.OFFICIAL)
def sharded_optimizer(ShardedOptimizer: Any) -> dict[str, Any]:
    """Judge the class ``ShardedOptimizer(parameters, make_optimizer)`` with its method ``step()``."""
    return judge(optimizing.OFFICIAL, optimizing.play, optimizing.CASES, ShardedOptimizer, ranks=(3, 2, 4))


@exercise(title="Clip by the true norm", difficulty=1, minutes=15, official=clipping.OFFICIAL)
def clip(clip_shards: Any) -> dict[str, Any]:
    """Judge ``clip_shards(shards, max_norm)``, which returns the norm of all ranks' shards."""
    return judge(clipping.OFFICIAL, clipping.play, clipping.CASES, clip_shards, ranks=(3, 2, 4))


@exercise(title="A linear layer that frees its weight", difficulty=3, minutes=35, official=linear.OFFICIAL)
def sharded_linear(sharded_linear: Any) -> dict[str, Any]:
    """Judge ``sharded_linear(x, shard, rows)``, forward and backward."""
    return judge(linear.OFFICIAL, linear.play, linear.CASES, sharded_linear, ranks=(3, 2, 4))


@exercise(title="Prefetch", difficulty=2, minutes=20, official=prefetching.OFFICIAL)
def prefetch(run: Any) -> dict[str, Any]:
    """Judge ``run(units, x)``: in time of a simulated GPU, and in units that are gathered at once."""
    return judge(prefetching.OFFICIAL, prefetching.play, prefetching.CASES, run)


@exercise(title="The library's call", difficulty=2, minutes=15, official=starting.OFFICIAL)
def start(start: Any) -> dict[str, Any]:
    """Judge ``start(build)``, which returns a model that has begun on meta, sharded by ``fully_shard``."""
    return judge(starting.OFFICIAL, starting.play, starting.CASES, start, ranks=(3, 2))
