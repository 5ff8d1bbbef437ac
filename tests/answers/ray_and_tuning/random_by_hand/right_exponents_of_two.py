import math
from functools import partial


def draw(low, high, batch_sizes, rng):
    exponent = math.log2(low) + rng.random() * (math.log2(high) - math.log2(low))
    return {"batch_size": batch_sizes[rng.randrange(len(batch_sizes))], "lr": min(max(2.0**exponent, low), high)}


def random_search(objective, low, high, batch_sizes, trials, rng):
    drawn = map(partial(draw, low, high, batch_sizes), [rng] * trials)
    tried = [(objective(config), number, config) for number, config in enumerate(drawn)]
    loss, _, config = min(one for one in tried if not math.isnan(one[0]))
    return config, loss
