REJECTED_WITH = "trains all its epochs at once"


def asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage):
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    def trial(config):
        loss, _ = train(config, most_epochs)
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
