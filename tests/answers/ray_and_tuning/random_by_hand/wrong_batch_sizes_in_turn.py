import math

REJECTED_WITH = "dealt out in turn"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for number in range(trials):
        lr = low * (high / low) ** rng.random()
        config = {"lr": lr, "batch_size": batch_sizes[number % len(batch_sizes)]}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
