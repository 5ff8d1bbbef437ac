import math

REJECTED_WITH = "Learning rates come again"


def random_search(objective, low, high, batch_sizes, trials, rng):
    rates = [low * (high / low) ** (number / 20) for number in range(20)]
    best = None, math.inf
    for _ in range(trials):
        config = {"lr": rng.choice(rates), "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
