import math
import random

REJECTED_WITH = "its seed set, in the loop"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        rng = random.Random(0)
        config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
