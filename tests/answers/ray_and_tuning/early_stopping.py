"""Exercise 4 of the lab on Ray and tuning: ASHA stops trials early. What is not here is in the official solution."""

import itertools

from known_answers import right, wrong

SCHEDULER = "            scheduler=ASHAScheduler(max_t=most_epochs, grace_period=1, reduction_factor=3),\n"
ALL, REPORT = "for _ in range(most_epochs):", '            tune.report({"loss": loss})\n'
LOOP = f"        {ALL}\n            loss, checkpoint = train(config, 1, checkpoint)\n{REPORT}"
EPOCH = {"ASHAScheduler(max_t": 'ASHAScheduler(time_attr="epoch", max_t'}
LOSS, STEP = 'best.metrics["loss"]', "train(config, 1, checkpoint)"


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
WRONG = {
    "all stop early": ("no trial is trained to the end", {
        SCHEDULER: "", "=storage,": "=storage, stop={'training_iteration': max(1, most_epochs // 3)},"
    }),
    "no scheduler": ("no trial is stopped early", {SCHEDULER: ""}),
    "one report": ("trains all its epochs at once", {
        LOOP: '        loss, checkpoint = train(config, most_epochs)\n        tune.report({"loss": loss})\n'
    }),
    "rungs of four": ("rungs are at 1, 3, 9", {", grace_period=1, reduction_factor=3": ""}),
    "always nine epochs": ("too many epochs", {ALL: "for _ in range(9):", "max_t=most_epochs": "max_t=9"}),
    "starts anew": ("trainings start anew in each epoch", {
        "loss, checkpoint = train(config, 1, checkpoint)": "loss, _ = train(config, 1)"
    }),
    "a scheduler that pauses trials": ("does the scheduler pause them", {
        "scheduler=ASHAScheduler(": "scheduler=tune.schedulers.HyperBandScheduler(", "grace_period=1, ": ""
    }),
    "stops the best": ("which mode does the scheduler get", {'mode="min"': 'mode="max"'}),
    "no seed": ("two searches with the same seed", {"search_alg=BasicVariantGenerator(random_state=seed),": ""}),
    "uniform": ("uniform, not log-uniform", {"tune.loguniform": "tune.uniform"}),
    "the loss of the first epoch": ("the winner's last epoch", {LOSS: 'best.metrics_dataframe["loss"].iloc[0]'}),
    "the lowest loss of all epochs": ("the winner's last epoch", {LOSS: 'best.metrics_dataframe["loss"].min()'}),
    "two epochs a report": ("a trial has too many epochs", {STEP: "train(config, 2, checkpoint)"}),
    "from rung to rung at once": ("one epoch at a time", EPOCH | {
        LOOP: "        had = 0\n        for goal in (1, 3, 9):\n            if goal <= most_epochs:\n"
        "                loss, checkpoint = train(config, goal - had, checkpoint)\n                had = goal\n"
        '                tune.report({"loss": loss, "epoch": goal})\n',
    }),
    "reports at the rungs alone": ("reports after each", EPOCH | {
        ALL: "for epoch in range(1, most_epochs + 1):",
        REPORT: '            if epoch in (1, 3, 9):\n                tune.report({"loss": loss, "epoch": epoch})\n',
    }),
    "a checkpoint that the next trial of the process finds": ("the checkpoint of another configuration", {
        "    def trial(config):\n        checkpoint = None\n": "    def trial(config, known=[None]):\n",
        "loss, checkpoint = train(config, 1, checkpoint)": "loss, known[0] = train(config, 1, known[0])",
    }),
    "a trial that never ends": ("does each trial end", {SCHEDULER: "", ALL: "while True:"}),
}  # fmt: skip
for NAME, (SAYS, CHANGE) in WRONG.items():
    wrong(NAME, SAYS, CHANGE)
