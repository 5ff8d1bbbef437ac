import math


import random


from utils import draw


from checks.labs import ray_and_tuning as check


def curve(lr, epochs):
    decades = math.log10(lr / 0.003)  # powers of ten away from the best learning rate
    final = 0.1 + 0.3 * decades**2
    return final + (2.3 - final) * math.exp(-0.15 * 3**decades * epochs)


RATES, EPOCHS = (0.03, 0.01, 0.003, 0.0003), range(0, 28)


def random_search(objective, low, high, batch_sizes, trials, rng):
    ### BEGIN SOLUTION
    best, lowest = None, math.inf
    for _ in range(trials):
        exponent = rng.uniform(math.log10(low), math.log10(high))
        lr = min(max(10**exponent, low), high)  # rounding must not lead outside
        config = {"lr": lr, "batch_size": rng.choice(batch_sizes)}
        loss = objective(config)
        if loss < lowest:  # false for nan
            best, lowest = config, loss
    return best, lowest


def ranking(epochs, rates):
    return sorted(rates, key=lambda lr: curve(lr, epochs))


def successive_halving(configs, train, eta, first):
    ### BEGIN SOLUTION
    rung = [(place, config, None) for place, config in enumerate(configs)]
    epochs, had = first, 0
    while True:
        trained = []
        for place, config, checkpoint in rung:
            loss, checkpoint = train(config, epochs - had, checkpoint)
            if not math.isnan(loss):
                trained.append((loss, place, config, checkpoint))
        trained.sort(key=lambda trial: trial[:2])
        if len(rung) == 1:
            loss, _, config, _ = trained[0]
            return config, loss
        keep = max(1, len(rung) // eta)
        rung = [trial[1:] for trial in trained[:keep]]
        epochs, had = epochs * eta, epochs


def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
    ### BEGIN SOLUTION
    from ray import tune
    from ray.tune.search.basic_variant import BasicVariantGenerator

    def trial(config):
        tune.report({"loss": objective(config)})

    tuner = tune.Tuner(
        trial,
        param_space={"lr": tune.loguniform(low, high), "batch_size": tune.choice(batch_sizes)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            search_alg=BasicVariantGenerator(random_state=seed),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    best = tuner.fit().get_best_result()
    return best.config, best.metrics["loss"]


def goes_on(loss, earlier, eta=3):
    if not earlier:
        return True
    ordered = sorted(earlier)
    place = (len(ordered) - 1) / eta  # between two losses the line is drawn in between
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return loss <= low + (high - low) * (place - math.floor(place))


def asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage):
    ### BEGIN SOLUTION
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    def trial(config):
        checkpoint = None
        for _ in range(most_epochs):
            loss, checkpoint = train(config, 1, checkpoint)
            tune.report({"loss": loss})

    tuner = tune.Tuner(
        trial,
        param_space={"lr": tune.loguniform(low, high), "batch_size": tune.choice(batch_sizes)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            search_alg=BasicVariantGenerator(random_state=seed),
            scheduler=ASHAScheduler(max_t=most_epochs, grace_period=1, reduction_factor=3),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    best = tuner.fit().get_best_result()
    return best.config, best.metrics["loss"]
