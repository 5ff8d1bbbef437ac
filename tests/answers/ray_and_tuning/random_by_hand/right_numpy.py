import numpy as np


def random_search(objective, low, high, batch_sizes, trials, rng):
    generator = np.random.default_rng(rng.getrandbits(64))
    rates = np.exp(generator.uniform(np.log(low), np.log(high), size=trials)).clip(low, high)
    sizes = generator.choice(batch_sizes, size=trials)
    configs = [{"lr": lr, "batch_size": int(size)} for lr, size in zip(rates, sizes, strict=True)]
    losses = np.array([objective(config) for config in configs])
    return configs[np.nanargmin(losses)], np.nanmin(losses)
