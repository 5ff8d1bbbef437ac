import math

REJECTED_WITH = "Learning rate and batch size depend on each other"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        u = rng.random()
        config = {"lr": low * (high / low) ** u, "batch_size": batch_sizes[int(u * len(batch_sizes))]}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
