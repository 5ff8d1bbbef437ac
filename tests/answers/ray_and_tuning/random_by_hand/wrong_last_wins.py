import math

REJECTED_WITH = "The last configuration is returned"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        lr = low * (high / low) ** rng.random()
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if math.isfinite(loss):
            best = config, loss
    return best
