"""Exercise 1 of the lab on Ray and tuning: random search."""

import math
import random
from functools import partial

import numpy as np
from known_answers import right, wrong


def random_search(objective, low, high, batch_sizes, trials, rng):
    best, lowest = None, math.inf
    for _ in range(trials):
        exponent = rng.uniform(math.log10(low), math.log10(high))
        lr = min(max(10**exponent, low), high)  # rounding must not lead outside
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < lowest:  # false for nan
            best, lowest = config, loss
    return best, lowest


EXPONENT = "        exponent = rng.uniform(math.log10(low), math.log10(high))\n"
LR = "        lr = min(max(10**exponent, low), high)  # rounding must not lead outside\n"
EQUAL = {
    "16: arguments of `rng.uniform(math.log10(low), math.log10(high))` swapped": "the same distribution",
    "17: arguments of `min(max(10 ** exponent, low), high)` swapped": "min has no order",
    "17: arguments of `max(10 ** exponent, low)` swapped": "max has no order",
    "20: other comparison in `loss < lowest`": "of equal losses, either may be returned",
}


# --- right, and written differently


@right("exponents of two")
def exponents_of_two():
    def draw(low, high, batch_sizes, rng):
        exponent = math.log2(low) + rng.random() * (math.log2(high) - math.log2(low))
        return {"batch_size": batch_sizes[rng.randrange(len(batch_sizes))], "lr": min(max(2.0**exponent, low), high)}

    def random_search(objective, low, high, batch_sizes, trials, rng):
        drawn = map(partial(draw, low, high, batch_sizes), [rng] * trials)
        tried = [(objective(config), number, config) for number, config in enumerate(drawn)]
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


# --- wrong


@wrong("a list of rates", "learning rates come again")
def a_list_of_rates():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        rates = [low * (high / low) ** (number / 20) for number in range(20)]
        best = None, math.inf
        for _ in range(trials):
            config = {"lr": rng.choice(rates), "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("bases mixed", "natural logarithms and powers of ten")
def bases_mixed():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = 10 ** rng.uniform(math.log(low), math.log(high))
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("batch sizes in turn", "dealt out, in turn or in blocks")
def batch_sizes_in_turn():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for number in range(trials):
            lr = low * (high / low) ** rng.random()
            config = {"lr": lr, "batch_size": batch_sizes[number % len(batch_sizes)]}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("crowds around the best", "no sample depends on the losses of earlier ones")
def crowds_around_the_best():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for number in range(trials):
            lr = low * (high / low) ** rng.random()
            if number > trials // 2:
                near = best[0]["lr"] * 2 ** rng.uniform(-1, 1)
                lr = near if low <= near <= high else lr
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("every batch size", "that is a grid")
def every_batch_size():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = low * (high / low) ** rng.random()
            for batch_size in batch_sizes:
                config = {"lr": lr, "batch_size": batch_size}
                loss = objective(config)
                if loss < best[1]:
                    best = config, loss
        return best

    return (random_search,)


@wrong("exponent not raised", "is a logarithm")
def exponent_not_raised():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = rng.uniform(math.log10(low), math.log10(high))
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("grid", "equal distances")
def grid():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for number in range(trials):
            lr = low * (high / low) ** (number / max(1, trials - 1))
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("highest wins", "the highest loss wins")
def highest_wins():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = low * (high / low) ** rng.random()
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if best[0] is None or loss > best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("last wins", "the last configuration is returned")
def last_wins():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = low * (high / low) ** rng.random()
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if math.isfinite(loss):
                best = config, loss
        return best

    return (random_search,)


@wrong("nan wins", "a training that has diverged wins")
def nan_wins():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        tried = []
        for _ in range(trials):
            config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
            tried.append((config, objective(config)))
        return min(tried, key=lambda one: one[1])

    return (random_search,)


@wrong("one number for both", "depend on each other")
def one_number_for_both():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            u = rng.random()
            config = {"lr": low * (high / low) ** u, "batch_size": batch_sizes[int(u * len(batch_sizes))]}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("one too many", "the budget is one training")
def one_too_many():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials + 1):
            lr = low * (high / low) ** rng.random()
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("own generator", "draw with it and with nothing else")
def own_generator():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = low * (high / low) ** random.random()
            config = {"lr": lr, "batch_size": random.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("seed in the loop", "its seed set, in the loop")
def seed_in_the_loop():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            rng = random.Random(0)
            config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("seed of its own", "another seed makes the same search")
def seed_of_its_own():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        rng = random.Random(0)
        best = None, math.inf
        for _ in range(trials):
            config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


@wrong("trained again", "are trained a second time")
def trained_again():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = low * (high / low) ** rng.random()
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best[0], objective(best[0])

    return (random_search,)


@wrong("uniform", "uniform, not log-uniform")
def uniform():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        best = None, math.inf
        for _ in range(trials):
            lr = rng.uniform(low, high)
            config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (random_search,)


# --- wrong, as changes of the right answer

wrong("edges half as likely", "batch sizes are not equally likely", {
    "rng.choice(batch_sizes)": "batch_sizes[round(rng.uniform(0, len(batch_sizes) - 1))]"
})  # fmt: skip
wrong("the last size never", "batch sizes are not equally likely", {
    "rng.choice(batch_sizes)": "rng.choice(batch_sizes[:-1] or batch_sizes)"
})  # fmt: skip
wrong("large sizes for small rates", "depend on each other", {
    "rng.choice(batch_sizes)": "batch_sizes[min(int(abs(math.log(lr / low) / math.log(high / low)) * len(batch_sizes)), len(batch_sizes) - 1)]"
})  # fmt: skip
wrong("lowest starts at 100", "return two things", {"best, lowest = None, math.inf": "best, lowest = None, 100"})
wrong(
    "nan is 0",
    "wins",
    {"        if loss < lowest:": "        loss = 0 if loss != loss else loss\n        if loss < lowest:"},
)
wrong("the absolute loss", "the highest loss wins", {
    "        if loss < lowest:  # false for nan\n            best, lowest = config, loss": "        if abs(loss) < abs(lowest):\n            best, lowest = config, loss"
})  # fmt: skip
wrong("a normal distribution", "not log-uniform", {
    EXPONENT: "        middle, width = math.log10(low * high) / 2, math.log10(high / low)\n        exponent = rng.gauss(middle, width / 6)\n"
})  # fmt: skip
wrong("a slight slope", "not log-uniform", {
    LR: "        place = math.log(10**exponent / low) / math.log(high / low)\n        lr = min(max(low * (high / low) ** max(place, 0) ** 1.3, low), high)\n"
})  # fmt: skip
wrong("the highest rates never", "learning rates is in the range", {
    "math.log10(high))\n": "math.log10(high) - 0.15)\n"
})  # fmt: skip
wrong("uniform between powers of ten", "each part of the exponents' range", {
    EXPONENT: "        decades = math.log10(high / low)\n        parts = round(decades)\n        place = rng.randrange(parts)\n",
    LR: "        start, ratio = low * (high / low) ** (place / parts), (high / low) ** (1 / parts)\n"
    "        lr = min(start * rng.uniform(1, ratio), high)\n",
})  # fmt: skip
wrong("losses are kept from call to call", "is something kept from one call to the next", {
    "        loss = objective(config)\n": "        kept = vars(random_search)\n        if str(config) not in kept:\n"
    "            kept[str(config)] = objective(config)\n        loss = kept[str(config)]\n"
})  # fmt: skip
wrong("rates are rounded to a millionth", "range", {LR: LR + "        lr = round(lr, 6)\n"})
wrong(
    "up to 90 % of the range",
    "not log-uniform",
    {EXPONENT: EXPONENT + "        exponent -= 0.1 * (exponent - math.log10(low))\n"},
)
wrong("the global generator", "draw with it and with nothing else", {"rng.": "random."})
wrong("the state is put back", "a generator that was used before makes the same search", {
    "    best, lowest = None": "    state = rng.getstate()\n    best, lowest = None", "    return best, lowest": "    rng.setstate(state)\n    return best, lowest"
})  # fmt: skip
wrong(
    "the batch sizes are shuffled",
    "`batch_sizes",
    {"rng.choice(batch_sizes)": "(rng.shuffle(batch_sizes), batch_sizes[0])[1]"},
)
wrong("one dict for all", "the last configuration is returned", {
    "    for _": "    config = {}\n    for _", "config = {\"lr\": lr, \"batch_size\":": "config |= {\"lr\": lr, \"batch_size\":"
})  # fmt: skip
wrong(
    "the loss is a string", "the second thing to return is a loss", {"return best, lowest": "return best, str(lowest)"}
)
wrong(
    "the best with its loss",
    "lr and batch_size, nothing else",
    {"return best, lowest": "return best | {'loss': lowest}, lowest"},
)
wrong("half as many", "the budget is one training", {"range(trials)": "range(max(1, trials // 2))"})
wrong("diverged trials are repeated", "the budget is one training", {
    "        loss = objective(config)\n": "        loss = objective(config)\n        if loss != loss:\n            loss = objective(config | {'lr': lr * 0.999})\n"
})  # fmt: skip
wrong("losses up to a billion", "return two things", {"None, math.inf": "None, 1e9"})


@wrong("the second half mirrors the first", "learning rates mirror others")
def mirrored():
    def random_search(objective, low, high, batch_sizes, trials, rng):
        places = [rng.random() for _ in range((trials + 1) // 2)]
        tried = []
        for place in [*places, *(1 - one for one in places)][:trials]:
            lr = min(max(low * (high / low) ** place, low), high)
            tried.append({"lr": lr, "batch_size": rng.choice(batch_sizes)})
        losses = [objective(config) for config in tried]
        best = min((n for n in range(trials) if not math.isnan(losses[n])), key=losses.__getitem__)
        return tried[best], losses[best]

    return (random_search,)
