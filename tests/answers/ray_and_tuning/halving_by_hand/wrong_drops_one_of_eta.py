import math

REJECTED_WITH = "yours drops one of eta"


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
        if len(rung) == 1:
            return trained[0][1], trained[0][0]
        keep = max(1, len(rung) - max(1, len(rung) // eta))
        rung = [(config, checkpoint) for _, config, checkpoint in trained[:keep]]
        epochs, had = epochs * eta, epochs
