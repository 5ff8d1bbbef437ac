import math

REJECTED_WITH = "no sample depends on the losses of earlier ones"


def random_search(objective, low, high, batch_sizes, trials, rng):
    best = None, math.inf
    for number in range(trials):
        lr = low * (high / low) ** rng.random()
        if number > trials // 2:
            lr = min(max(best[0]["lr"] * 2 ** rng.uniform(-1, 1), low), high)
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < best[1]:
            best = config, loss
    return best
