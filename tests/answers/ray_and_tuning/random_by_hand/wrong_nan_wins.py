REJECTED_WITH = "A training that has diverged wins"


def random_search(objective, low, high, batch_sizes, trials, rng):
    tried = []
    for _ in range(trials):
        config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
        tried.append((config, objective(config)))
    return min(tried, key=lambda one: one[1])
