import math

REJECTED_WITH = "The sum of a trial's losses decides"


def successive_halving(configs, train, eta, first):
    rung = [(config, None, 0.0) for config in configs]
    epochs, had = first, 0
    while True:
        trained = []
        for config, checkpoint, losses in rung:
            try:
                loss, checkpoint = train(config, epochs - had, checkpoint)
            except RuntimeError:
                continue
            if not math.isnan(loss):
                trained.append((config, checkpoint, losses + loss))
        trained.sort(key=lambda trial: trial[2])
        if len(rung) == 1:
            return trained[0][0], loss
        rung = trained[: max(1, len(rung) // eta)]
        epochs, had = epochs * eta, epochs
