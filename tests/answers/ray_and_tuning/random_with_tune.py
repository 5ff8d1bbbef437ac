"""Exercise 3 of the lab on Ray and tuning: random search with Ray Tune. What is not here is in the official solution."""

import random

from known_answers import right, wrong

RETURN, FIT = '    return best.config, best.metrics["loss"]', "tuner.fit().get_best_result()"
LR, SIZES, SEED = "tune.loguniform(low, high)", "tune.choice(batch_sizes)", "random_state=seed"
GENERATOR = "            search_alg=BasicVariantGenerator(random_state=seed),\n"
NUMBER, TRIAL = (
    "            num_samples=trials,\n",
    '    def trial(config):\n        tune.report({"loss": objective(config)})\n',
)


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


@wrong("without Tune", "let Tune run them")
def without_tune():
    def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
        rng = random.Random(seed)
        tried = [
            {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)} for _ in range(trials)
        ]
        return min(((config, objective(config)) for config in tried), key=lambda one: (one[1] != one[1], one[1]))

    return (tune_search,)


ONE_RATE = "low * (high / low) ** random.Random(seed).random()"
WRONG = {
    "a grid of batch sizes": ("that is a grid", {SIZES: "tune.grid_search(batch_sizes)"}),
    "no seed": ("two searches with the same seed", {GENERATOR: ""}),
    "a seed of its own": ("another seed makes the same draws", {SEED: "random_state=0"}),
    "uniform": ("uniform, not log-uniform", {"tune.loguniform": "tune.uniform"}),
    "the exponent": ("a learning rate is a logarithm", {LR: "tune.uniform(math.log10(low), math.log10(high))"}),
    "one rate for all trials": ("learning rates are all the same", {LR: ONE_RATE}),
    "the last batch size is left out": ("batch sizes are not equally", {SIZES: "tune.choice(batch_sizes[:-1])"}),
    "batch sizes without the seed": (
        "two searches with the same seed", {SIZES: "tune.sample_from(lambda _: random.choice(batch_sizes))"}
    ),
    "a list of rates": ("come again", {LR: "tune.choice([low * (high / low) ** (k / 5) for k in range(6)])"}),
    "trained again": ("outside any trial", {RETURN: "    return best.config, objective(best.config)"}),
    "the last one": ("the last configuration is returned", {FIT: "list(tuner.fit())[-1]"}),
    "nan comes first": ("that has diverged wins", {FIT: "min(tuner.fit(), key=lambda one: one.metrics['loss'])"}),
    "the highest loss": ("the highest loss wins", {'mode="min"': 'mode="max"'}),
    "a name that is not there": ("a trial has raised NameError", {"objective(config)})": "objektive(config)})"}),
    "nothing is reported": ("did not include the specified metric", {TRIAL: "    def trial(config):\n        objective(config)\n"}),
    "a process for each trial": ("reuse_actors=True", {"            reuse_actors=True,\n": ""}),
    "one trial": ("num_samples says how many", {NUMBER: ""}),
    "Ray is shut down": ("leave it running", {RETURN: "    import ray\n\n    ray.shutdown()\n" + RETURN}),
    "the folder of the user": ("must be in storage", {"storage_path=storage, ": ""}),
}  # fmt: skip
for NAME, (SAYS, CHANGE) in WRONG.items():
    wrong(NAME, SAYS, CHANGE)
