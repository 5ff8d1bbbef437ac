import math
import random

REJECTED_WITH = "draw with rng, and with no other"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        lr = low * (high / low) ** random.random()
        config = {"lr": lr, "batch_size": random.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
