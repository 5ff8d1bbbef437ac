import math

REJECTED_WITH = "also where n // eta is 0"


def successive_halving(configs, train, eta, first):
    rung = [(config, None) for config in configs]
    epochs, had = first, 0
    while True:
        trained = []
        for config, checkpoint in rung:
            try:
                loss, checkpoint = train(config, epochs - had, checkpoint)
            except RuntimeError:
                continue
            if not math.isnan(loss):
                trained.append((loss, config, checkpoint))
        trained.sort(key=lambda trial: (trial[0], configs.index(trial[1])))
        if len(rung) // eta == 0:
            return trained[0][1], trained[0][0]
        rung = [(config, checkpoint) for _, config, checkpoint in trained[: len(rung) // eta]]
        epochs, had = epochs * eta, epochs
