import math

REJECTED_WITH = "are trained a second time"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for _ in range(trials):
        lr = low * (high / low) ** rng.random()
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best[0], objective(best[0])
