import itertools


def asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage):
    import numpy
    from ray import tune
    from ray.tune.schedulers import AsyncHyperBandScheduler

    def train_for_ever(config, train, checkpoint=None):
        for epoch in itertools.count(1):
            loss, checkpoint = train(dict(config), 1, checkpoint)
            tune.report({"accuracy": -loss, "epoch": epoch})

    numpy.random.seed(seed)
    scheduler = AsyncHyperBandScheduler(
        time_attr="epoch", metric="accuracy", mode="max", max_t=most_epochs, reduction_factor=3
    )
    tuner = tune.Tuner(
        tune.with_parameters(train_for_ever, train=train),
        param_space={"lr": tune.loguniform(low, high), "batch_size": tune.choice(batch_sizes)},
        tune_config=tune.TuneConfig(num_samples=trials, scheduler=scheduler, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=storage, stop={"epoch": most_epochs}, verbose=0),
    )
    best = max(tuner.fit(), key=lambda result: result.metrics["accuracy"])
    return best.config, -best.metrics["accuracy"]
