"""Exercise 3 of the lab on Ray and tuning: random search with Ray Tune."""

import math
import random

from known_answers import right, wrong


def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
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


EQUAL = {
    "7: tune_search with `torch.manual_seed(0)`": "seeds may be set: Tune may draw with them",
    "7: tune_search with `dist.barrier()`": "it is alone in its group",
    "11: trial with `torch.manual_seed(0)`": "a trial's process is Ray's",
    "11: trial with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "a trial's process is Ray's",
    "11: trial with `torch.set_default_dtype(torch.float64)`": "a trial's process is Ray's",
    "11: trial with `open('left_behind', 'w').close()`": "a trial's folder is Tune's",
    "24: `tune.RunConfig(storage_path=storage, verbose=0)` without verbose": "it may show tables",
    "24: 0 → 1": "it may show tables",
}
GENERATOR = "            search_alg=BasicVariantGenerator(random_state=seed),\n"
RETURN = '    return best.config, best.metrics["loss"]'
LR = "tune.loguniform(low, high)"


# --- right, and written differently


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
    "    def trial(config):\n        tune.report({\"loss\": objective(config)})\n": "    def trial(config, objective):\n"
    "        tune.report({\"epoch\": 1, \"loss\": objective(dict(config))})\n",
    "        trial,\n": "        tune.with_parameters(trial, objective=objective),\n",
    "            num_samples=trials,\n": "            num_samples=trials,\n            max_concurrent_trials=1,\n",
})  # fmt: skip


# --- wrong

wrong("a grid of batch sizes", "that is a grid", {"tune.choice(batch_sizes)": "tune.grid_search(batch_sizes)"})
wrong("no seed", "two searches with the same seed", {GENERATOR: ""})
wrong("a seed of its own", "another seed makes the same draws", {"random_state=seed": "random_state=0"})
wrong("uniform", "uniform, not log-uniform", {"tune.loguniform": "tune.uniform"})
wrong("trained again", "in your function's own process, outside any trial", {
    RETURN: "    return best.config, objective(best.config)"
})  # fmt: skip
wrong(
    "one rate for all trials",
    "learning rates are all the same",
    {LR: "low * (high / low) ** random.Random(seed).random()"},
)
wrong("one batch size", "batch sizes are not equally likely", {"tune.choice(batch_sizes)": "batch_sizes[-1]"})
wrong("the last batch size is left out", "batch sizes are not equally likely", {
    "tune.choice(batch_sizes)": "tune.choice(batch_sizes[:-1])"
})  # fmt: skip
wrong("batch sizes without the seed", "two searches with the same seed", {
    "tune.choice(batch_sizes)": "tune.sample_from(lambda _: random.choice(batch_sizes))"
})  # fmt: skip
wrong("the lowest rates alone", "learning rates are not log-uniform", {
    LR: "tune.loguniform(low, low * (high / low) ** 0.1)"
})  # fmt: skip
wrong("the lower half of the exponents", "learning rates is in the range", {
    LR: "tune.loguniform(low, (low * high) ** 0.5)"
})  # fmt: skip
wrong("two digits", "round none", {
    LR: "tune.sample_from(lambda _: float(f'{low * (high / low) ** rng.random():.1e}'))",
    "    tuner =": "    rng = random.Random(seed)\n    tuner =",
})  # fmt: skip
wrong("a step of the grid", "learning rates come again", {
    LR: "tune.choice([low * (high / low) ** (k / 5) for k in range(6)])"
})  # fmt: skip
wrong("the last one", "not the best", {
    "    best = tuner.fit().get_best_result()\n": "    best = list(tuner.fit())[-1]\n"
})  # fmt: skip
wrong("a name that is not there", "a trial has raised NameError", {"objective(config)})": "objektive(config)})"})
wrong("an error behind the report", "a trial has raised ZeroDivisionError", {
    "objective(config)})\n": "objective(config)})\n        1 / 0\n"
})  # fmt: skip
wrong("the exponent", "a learning rate is a logarithm", {LR: "tune.uniform(math.log10(low), math.log10(high))"})
wrong("nothing is reported", "did not include the specified metric", {
    'tune.report({"loss": objective(config)})': "objective(config)"
})  # fmt: skip
wrong("a process for each trial", "reuse_actors=True", {"            reuse_actors=True,\n": ""})
wrong("one trial", "num_samples says how many", {"            num_samples=trials,\n": ""})
wrong("the highest loss", "the highest loss wins", {'mode="min"': 'mode="max"'})
wrong("the lowest, though nan comes first", "a training that has diverged wins", {
    "tuner.fit().get_best_result()": "min(tuner.fit(), key=lambda one: one.metrics['loss'])"
})  # fmt: skip
wrong("Ray is shut down", "leave it running", {RETURN: "    import ray\n\n    ray.shutdown()\n" + RETURN})
wrong(
    "another working folder", "leaves the working folder", {RETURN: "    import os\n\n    os.chdir(storage)\n" + RETURN}
)
wrong("a file in the working folder", "leaves the files in the working folder", {
    RETURN: "    open('best.txt', 'w').close()\n" + RETURN
})  # fmt: skip
wrong("without gradients ever after", "leaves grad mode", {
    RETURN: "    import torch\n\n    torch.set_grad_enabled(False)\n" + RETURN
})  # fmt: skip
wrong("the folder of the user", "must be in storage", {"storage_path=storage, ": ""})


@wrong("without Tune", "let Tune run them")
def without_tune():
    def tune_search(objective, low, high, batch_sizes, trials, seed, storage):
        rng = random.Random(seed)
        best = None, math.inf
        for _ in range(trials):
            config = {"lr": low * (high / low) ** rng.random(), "batch_size": rng.choice(batch_sizes)}
            loss = objective(config)
            if loss < best[1]:
                best = config, loss
        return best

    return (tune_search,)
