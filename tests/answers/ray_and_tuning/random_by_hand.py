"""Exercise 1 of the lab on Ray and tuning: random search. What is not here is in the official solution."""

import math
from functools import partial

import numpy as np
from known_answers import right, wrong

DRAW, LESS = "rng.choice(batch_sizes)", "if loss < lowest:  # false for nan"
EXPONENT, LOSS = "rng.uniform(math.log10(low), math.log10(high))", "        loss = objective(config)\n"
LR = "        lr = min(max(10**exponent, low), high)  # rounding must not lead outside\n"
CLIP = "        lr = min(max(lr, low), high)\n"


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


WRONG = {
    "uniform": ("are uniform, not log-uniform", {LR: "        lr = rng.uniform(low, high)\n"}),
    "a list of rates": (
        "learning rates come again",
        {EXPONENT: "math.log10(low) + rng.randrange(20) / 19 * math.log10(high / low)"},
    ),
    "bases mixed": ("natural logarithms and powers of ten", {EXPONENT: EXPONENT.replace("log10", "log"), LR: "        lr = 10**exponent\n"}),
    "exponent not raised": ("is a logarithm", {LR: "        lr = exponent\n"}),
    "a grid": (
        "equal distances",
        {"for _ in": "for number in", EXPONENT: "math.log10(low) + number / max(1, trials - 1) * math.log10(high / low)"},
    ),
    "a normal distribution": (
        "not log-uniform",
        {EXPONENT: "rng.gauss(math.log10(low * high) / 2, math.log10(high / low) / 6)"},
    ),
    "a slight slope": (
        "not log-uniform",
        {LR: "        lr = low * (high / low) ** (math.log(10**exponent / low) / math.log(high / low)) ** 1.3\n" + CLIP},
    ),
    "the highest rates never": ("learning rates is in the range", {"math.log10(high))\n": "math.log10(high) - 0.15)\n"}),
    "rates are rounded": ("range", {LR: LR + "        lr = round(lr, 6)\n"}),
    "batch sizes in turn": (
        "dealt out, in turn or in blocks",
        {"for _ in": "for number in", DRAW: "batch_sizes[number % len(batch_sizes)]"},
    ),
    "edges half as likely": (
        "batch sizes are not equally likely",
        {DRAW: "batch_sizes[round(rng.uniform(0, len(batch_sizes) - 1))]"},
    ),
    "the last size never": ("batch sizes are not equally likely", {DRAW: "rng.choice(batch_sizes[:-1])"}),
    "one number for both": (
        "depend on each other",
        {DRAW: "batch_sizes[int(abs(math.log(lr / low) / math.log(high / low)) * 0.9999 * len(batch_sizes))]"},
    ),
    "crowds around the best": (
        "no sample depends on the losses of earlier ones",
        {"for _ in": "for number in", LR: LR + "        lr = min(max(best['lr'] * 2 ** rng.uniform(-1, 1), low), high) if number > trials // 2 else lr\n"},
    ),
    "seed in the loop": ("its seed set, in the loop", {"        exponent": "        rng = random.Random(0)\n        exponent"}),
    "the global generator": ("random generator", {"rng.": "random."}),
    "every batch size": (
        "that is a grid",
        {"    for _ in range(trials):\n": "    for batch_size in [size for _ in range(trials) for size in batch_sizes]:\n",
         DRAW: "batch_size"},
    ),
    "one too many": ("the budget is one training", {"range(trials)": "range(trials + 1)"}),
    "half as many": ("the budget is one training", {"range(trials)": "range(max(1, trials // 2))"}),
    "trained again": ("are trained a second time", {"return best, lowest": "return best, objective(best)"}),
    "diverged trials are repeated": (
        "the budget is one training",
        {LOSS: LOSS + "        loss = objective(config | {'lr': lr * 0.999}) if loss != loss else loss\n"},
    ),
    "highest wins": ("the highest loss wins", {LESS: "if best is None or loss > lowest:"}),
    "last wins": ("the last configuration is returned", {LESS: "if math.isfinite(loss):"}),
    "nan wins": ("a training that has diverged wins", {LESS: "if not loss >= lowest:"}),
    "nan is 0": ("wins", {LOSS: LOSS + "        loss = 0 if loss != loss else loss\n"}),
    "the absolute loss": ("the highest loss wins", {LESS: "if abs(loss) < abs(lowest):"}),
    "lowest starts at 100": ("return two things", {"None, math.inf": "None, 100"}),
    "losses up to a billion": ("return two things", {"None, math.inf": "None, 1e9"}),
    "the batch sizes are shuffled": ("`batch_sizes`", {DRAW: "(rng.shuffle(batch_sizes), batch_sizes[0])[1]"}),
    "one dict for all": (
        "the last configuration is returned",
        {"    for _": "    config = {}\n    for _", 'config = {"lr": lr, "batch_size":': 'config |= {"lr": lr, "batch_size":'},
    ),
    "the loss is a string": ("is a loss, a number", {"return best, lowest": "return best, str(lowest)"}),
    "the best with its loss": ("nothing else", {"return best, lowest": "return best | {'loss': lowest}, lowest"}),
    "losses are kept from call to call": (
        "objective was never called",
        {LOSS: "        kept = vars(random_search)\n        if str(config) not in kept:\n"
         "            kept[str(config)] = objective(config)\n        loss = kept[str(config)]\n"},
    ),
}  # fmt: skip
for NAME, (SAYS, CHANGE) in WRONG.items():
    wrong(NAME, SAYS, CHANGE)
