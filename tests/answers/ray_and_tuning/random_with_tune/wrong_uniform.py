REJECTED_WITH = "uniform, not log-uniform"


def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
    from ray import tune
    from ray.tune.search.basic_variant import BasicVariantGenerator

    def trial(config):
        tune.report({"loss": objective(config)})

    tuner = tune.Tuner(
        trial,
        param_space={"lr": tune.uniform(low, high), "batch_size": tune.choice(batch_sizes)},
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
