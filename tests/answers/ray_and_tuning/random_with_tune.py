"""Random search with Ray Tune. What is not here is in the official solution."""

from known_answers import right, wrong

RETURN, FIT = '    return best.config, best.metrics["loss"]', "tuner.fit().get_best_result()"
NUMBER = "            num_samples=trials,\n"
TRIAL = '    def trial(config):\n        tune.report({"loss": objective(config)})\n'


@right("numpy's generator, a value that is returned, the highest score")
def returned():
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

    return (tune_search,)


right("the best is looked up in the table of results", {
    "    best = tuner.fit().get_best_result()\n": "    table = tuner.fit().get_dataframe()\n",
    RETURN: "    row = table.loc[table[\"loss\"].idxmin()]\n"
    "    return {\"lr\": float(row[\"config/lr\"]), \"batch_size\": int(row[\"config/batch_size\"])}, float(row[\"loss\"])",
})  # fmt: skip
right("parameters by with_parameters, one trial at a time", {
    TRIAL: TRIAL.replace("(config)", "(config, objective)", 1).replace("(config)", "(dict(config))"),
    "        trial,\n": "        tune.with_parameters(trial, objective=objective),\n",
    NUMBER: NUMBER + "            max_concurrent_trials=1,\n",
})  # fmt: skip

wrong("no seed", "two searches with the same seed", {
    "            search_alg=BasicVariantGenerator(random_state=seed),\n": ""
})  # fmt: skip
wrong("a grid of batch sizes", "that is a grid", {"tune.choice(batch_sizes)": "tune.grid_search(batch_sizes)"})
wrong("uniform", "not log-uniform: draw the exponent", {"tune.loguniform": "tune.uniform"})
wrong("a process for each trial", "reuse_actors=True", {"            reuse_actors=True,\n": ""})
wrong("trained again", "outside any trial", {RETURN: "    return best.config, objective(best.config)"})
