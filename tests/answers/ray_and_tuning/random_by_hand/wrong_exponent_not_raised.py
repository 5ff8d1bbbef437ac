import math

REJECTED_WITH = "is a logarithm"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        lr = rng.uniform(math.log10(low), math.log10(high))
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
