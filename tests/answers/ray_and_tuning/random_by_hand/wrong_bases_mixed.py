import math

REJECTED_WITH = "natural logarithms and powers of ten"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        lr = 10 ** rng.uniform(math.log(low), math.log(high))
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
