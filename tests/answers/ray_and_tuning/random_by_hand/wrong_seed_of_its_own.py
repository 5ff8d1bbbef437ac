import math
import random

REJECTED_WITH = "Another seed gives the same configurations"


def random_search(objective, low, high, batch_sizes, trials, rng):
    rng = random.Random(0)
    best = None, math.inf
    for _ in range(trials):
        config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
