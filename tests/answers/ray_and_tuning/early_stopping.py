"""Exercise 4 of the lab on Ray and tuning: a scheduler that stops trials early."""

# ruff: noqa: F401 (modules that changed answers use)
import itertools
import random

from known_answers import right, wrong


def asha_search(train, low, high, batch_sizes, trials, most_epochs, seed, storage):
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
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
            scheduler=ASHAScheduler(max_t=most_epochs, grace_period=1, reduction_factor=3),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    best = tuner.fit().get_best_result()
    return best.config, best.metrics["loss"]


_ASHA = "`ASHAScheduler(max_t=most_epochs, grace_period=1, reduction_factor=3)`"
EQUAL = {
    "7: asha_search with `torch.manual_seed(0)`": "seeds may be set: Tune may draw with them",
    "7: asha_search with `dist.barrier()`": "it is alone in its group",
    "12: trial with `torch.manual_seed(0)`": "never reached: the scheduler ends each trial at its last report",
    "12: trial with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "never reached",
    "12: trial with `dist.barrier()`": "never reached",
    "12: trial with `torch.set_default_dtype(torch.float64)`": "never reached",
    "12: trial with `open('left_behind', 'w').close()`": "never reached",
    f"26: {_ASHA} without max_t": "the trial ends by itself after most_epochs",
    f"26: {_ASHA} without grace_period": "1 is the default",
    "29: `tune.RunConfig(storage_path=storage, verbose=0)` without verbose": "it may show tables",
    "29: 0 → 1": "it may show tables",
}
SCHEDULER = "            scheduler=ASHAScheduler(max_t=most_epochs, grace_period=1, reduction_factor=3),\n"
LOOP = (
    "        for _ in range(most_epochs):\n            loss, checkpoint = train(config, 1, checkpoint)\n"
    '            tune.report({"loss": loss})\n'
)
LR = "tune.loguniform(low, high)"


# --- right, and written differently


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


right("the checkpoint in a list, and the metric at the scheduler", {
    "        checkpoint = None\n" + LOOP: "        known = [None]\n        while True:\n"
    "            loss, newest = train(config, 1, known[-1])\n            known.append(newest)\n"
    "            tune.report({\"loss\": loss, \"training_iteration\": len(known) - 1})\n"
    "            if len(known) > most_epochs:\n                return\n",
})  # fmt: skip
right(
    "one trial at a time",
    {"            num_samples=trials,\n": "            num_samples=trials,\n            max_concurrent_trials=1,\n"},
)


# --- wrong

wrong("all stop early", "no trial is trained to the end", {
    SCHEDULER: "", "storage_path=storage,": "storage_path=storage, stop={'training_iteration': max(1, most_epochs // 3)},"
})  # fmt: skip
wrong("no scheduler", "no trial is stopped early", {SCHEDULER: ""})
wrong("one report", "trains all its epochs at once", {
    LOOP: "        loss, checkpoint = train(config, most_epochs, checkpoint)\n        tune.report({\"loss\": loss})\n"
})  # fmt: skip
wrong("other rungs", "rungs are at 1, 3, 9", {", grace_period=1, reduction_factor=3": ""})
wrong("starts anew", "trainings start anew in each epoch", {
    LOOP: "        for epoch in range(most_epochs):\n            loss, _ = train(config, epoch + 1)\n            tune.report({\"loss\": loss})\n"
})  # fmt: skip
wrong("a scheduler that pauses trials", "does the scheduler pause them", {
    SCHEDULER: "            scheduler=tune.schedulers.MedianStoppingRule(time_attr='training_iteration', grace_period=1),\n"
})  # fmt: skip
wrong("stops the best", "against the rule", {'tune.report({"loss": loss})': 'tune.report({"loss": -loss})'})
wrong(
    "one rate for all trials",
    "learning rates are all the same",
    {LR: "low * (high / low) ** random.Random(seed).random()", "tune.choice(batch_sizes)": "batch_sizes[0]"},
)
wrong(
    "no seed",
    "two searches with the same seed",
    {"            search_alg=BasicVariantGenerator(random_state=seed),\n": ""},
)
wrong("one batch size", "batch sizes are not equally likely", {"tune.choice(batch_sizes)": "batch_sizes[0]"})
wrong("the loss of the first epoch", "is not that of the winner's last epoch", {
    'best.metrics["loss"]': 'best.metrics_dataframe["loss"].iloc[0]'
})  # fmt: skip
wrong(
    "two epochs a report",
    "a trial has too many epochs",
    {"train(config, 1, checkpoint)": "train(config, 2, checkpoint)"},
)
wrong("from rung to rung at once", "one epoch at a time", {
    LOOP: "        had = 0\n        for goal in (1, 3, 9):\n            if goal <= most_epochs:\n"
    "                loss, checkpoint = train(config, goal - had, checkpoint)\n                had = goal\n"
    '                tune.report({"loss": loss, "epoch": goal})\n',
    "ASHAScheduler(max_t": 'ASHAScheduler(time_attr="epoch", max_t',
})  # fmt: skip
wrong("a checkpoint that the next trial of the process finds", "the checkpoint of another configuration", {
    "    def trial(config):\n        checkpoint = None\n": "    def trial(config, known=[None]):\n",
    "loss, checkpoint = train(config, 1, checkpoint)": "loss, known[0] = train(config, 1, known[0])",
})  # fmt: skip
wrong("a trial that never ends", "does each trial end", {
    SCHEDULER: "", "for _ in range(most_epochs)": "for _ in itertools.count()"
})  # fmt: skip
wrong("uniform", "uniform, not log-uniform", {"tune.loguniform": "tune.uniform"})
wrong("the lowest loss of all epochs", "is not that of the winner's last epoch", {
    'best.metrics["loss"]': 'best.metrics_dataframe["loss"].min()'
})  # fmt: skip
wrong("reports at the rungs alone", "reports after each", {
    "for _ in range(most_epochs):": "for epoch in range(1, most_epochs + 1):",
    '            tune.report({"loss": loss})\n': "            if epoch in (1, 3, 9):\n"
    '                tune.report({"loss": loss, "epoch": epoch})\n',
    "ASHAScheduler(max_t": 'ASHAScheduler(time_attr="epoch", max_t',
})  # fmt: skip
