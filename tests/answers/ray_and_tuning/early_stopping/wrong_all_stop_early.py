REJECTED_WITH = "No trial is trained to the end"


def asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage):
    from ray import tune
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
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=storage, stop={"training_iteration": 3}, verbose=0),
    )
    best = tuner.fit().get_best_result()
    return best.config, best.metrics["loss"]
