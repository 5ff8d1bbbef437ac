import math

REJECTED_WITH = "the checkpoint of another configuration"


def successive_halving(configs, train, eta, first):
    rung, checkpoints = list(configs), [None] * len(configs)
    epochs, had = first, 0
    while True:
        trained, saved = [], []
        for config, checkpoint in zip(rung, checkpoints, strict=True):
            try:
                loss, checkpoint = train(config, epochs - had, checkpoint)
            except RuntimeError:
                continue
            saved.append(checkpoint)
            if not math.isnan(loss):
                trained.append((loss, config))
        trained.sort(key=lambda trial: trial[0])
        if len(rung) == 1:
            return trained[0][1], trained[0][0]
        rung = [config for _, config in trained[: max(1, len(rung) // eta)]]
        checkpoints = saved[: len(rung)]
        epochs, had = epochs * eta, epochs
