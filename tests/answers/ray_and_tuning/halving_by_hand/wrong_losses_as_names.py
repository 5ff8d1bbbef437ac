import math

REJECTED_WITH = "Of n trials n // eta go on"


def successive_halving(configs, train, eta, first):
    rung = [(config, None) for config in configs]
    epochs, had = first, 0
    while True:
        trained = {}
        for config, checkpoint in rung:
            try:
                loss, checkpoint = train(config, epochs - had, checkpoint)
            except RuntimeError:
                continue
            if not math.isnan(loss):
                trained[loss] = config, checkpoint
        if len(rung) == 1:
            ((loss, (config, _)),) = trained.items()
            return config, loss
        rung = [trained[loss] for loss in sorted(trained)[: max(1, len(rung) // eta)]]
        epochs, had = epochs * eta, epochs
