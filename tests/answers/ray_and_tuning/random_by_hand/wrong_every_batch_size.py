import math

REJECTED_WITH = "that is a grid"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        lr = low * (high / low) ** rng.random()
        for batch_size in batch_sizes:
            config = {"lr": lr, "batch_size": batch_size}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
    return best
