import math

REJECTED_WITH = "equal distances"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for number in range(trials):
        lr = low * (high / low) ** (number / max(1, trials - 1))
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
