import math
import random

REJECTED_WITH = "let Tune run them"


def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
    rng = random.Random(seed)
    best = None, math.inf
    for _ in range(trials):
        config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
