"""Random search. What is not here is in the official solution."""

import math

import numpy as np
from known_answers import right, wrong

LR = "        lr = min(max(10**exponent, low), high)  # rounding must not lead outside\n"


@right("exponents of two")
def exponents_of_two():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        tried = []
        for number in range(trials):
            exponent = math.log2(low) + rng.random() * (math.log2(high) - math.log2(low))
            size = batch_sizes[rng.randrange(len(batch_sizes))]
            config = {"batch_size": size, "lr": min(max(2.0**exponent, low), high)}
            tried.append((objective(config), number, config))
        loss, _, config = min(one for one in tried if not math.isnan(one[0]))
        return config, loss

    return (random_search,)


@right("numpy")
def numpy():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        generator = np.random.default_rng(rng.getrandbits(64))
        rates = np.exp(generator.uniform(np.log(low), np.log(high), size=trials)).clip(low, high)
        sizes = generator.choice(batch_sizes, size=trials)
        configs = [{"lr": lr, "batch_size": int(size)} for lr, size in zip(rates, sizes, strict=True)]
        losses = np.array([objective(config) for config in configs])
        return configs[np.nanargmin(losses)], np.nanmin(losses)

    return (random_search,)


@right("all configurations first, and the best from the sorted ones")
def sorted_ones():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        configs = [
            dict(batch_size=batch_sizes[int(rng.random() * len(batch_sizes))], lr=low * (high / low) ** rng.random())
            for _ in range(trials)
        ]
        losses = list(map(objective, configs))
        place = sorted(range(trials), key=lambda n: (losses[n] != losses[n], losses[n]))[0]
        return [configs[place], losses[place]]

    return (random_search,)


wrong("bases mixed", "outside the range", {"math.log10": "math.log", LR: "        lr = 10**exponent\n"})
wrong("a normal distribution", "learning rates are not log-uniform", {
    "rng.uniform(math.log10(low), math.log10(high))": "rng.gauss(math.log10(low * high) / 2, math.log10(high / low) / 8)"
})  # fmt: skip
wrong("a list of rates", "learning rates come again", {
    "rng.uniform(math.log10(low), math.log10(high))": "math.log10(low) + rng.randrange(20) / 19 * math.log10(high / low)"
})  # fmt: skip
wrong("the global generator", "random generator", {"rng.": "random."})
wrong("one dict for all", "is returned, not the best", {
    "    for _": "    config = {}\n    for _", 'config = {"lr": lr, "batch_size":': 'config |= {"lr": lr, "batch_size":'
})  # fmt: skip
