def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
    import numpy
    from ray import tune

    numpy.random.seed(seed)  # Tune draws with numpy's generator where none is given
    tuner = tune.Tuner(
        lambda config: {"score": -objective(config)},
        param_space={"lr": tune.loguniform(low, high), "batch_size": tune.choice(batch_sizes)},
        tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    best = tuner.fit().get_best_result(metric="score", mode="max")
    return best.config, -best.metrics["score"]
