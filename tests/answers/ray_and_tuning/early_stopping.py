"""ASHA stops trials early. What is not here is in the official solution."""

import itertools

from known_answers import right, wrong

SCHEDULER = "            scheduler=ASHAScheduler(max_t=most_epochs, grace_period=1, reduction_factor=3),\n"
REPORT = '            tune.report({"loss": loss})\n'
LOOP = f"        for _ in range(most_epochs):\n            loss, checkpoint = train(config, 1, checkpoint)\n{REPORT}"


@right("epochs without end, a stop by their number, the highest accuracy")
def stop_by_number():
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

    return (asha_search,)


right("the checkpoint in a list, and the trial ends behind its last report", {
    "        checkpoint = None\n" + LOOP: "        known = [None]\n        while len(known) <= most_epochs:\n"
    "            loss, newest = train(config, 1, known[-1])\n            known.append(newest)\n"
    "            tune.report({\"loss\": loss, \"training_iteration\": len(known) - 1})\n",
})  # fmt: skip
right("one trial at a time", {"num_samples=trials,\n": "num_samples=trials,\n            max_concurrent_trials=1,\n"})

wrong("no scheduler", "no trial is stopped early", {SCHEDULER: ""})
wrong("one report", "one epoch at a time", {
    LOOP: '        loss, checkpoint = train(config, most_epochs)\n        tune.report({"loss": loss})\n'
})  # fmt: skip
wrong("rungs of four", "other epochs than those of the rungs", {", grace_period=1, reduction_factor=3": ""})
wrong("starts anew", "trainings begin anew", {
    "loss, checkpoint = train(config, 1, checkpoint)": "loss, _ = train(config, 1)"
})  # fmt: skip
wrong("stops the best", "the best", {'mode="min"': 'mode="max"'})
