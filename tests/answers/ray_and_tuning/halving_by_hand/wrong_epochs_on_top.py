import math

REJECTED_WITH = "so many more than it had"


def successive_halving(configs, train, eta, first):
    rung = [(config, None) for config in configs]
    epochs = first
    while True:
        trained = []
        for config, checkpoint in rung:
            try:
                loss, checkpoint = train(config, epochs, checkpoint)
            except RuntimeError:
                continue
            if not math.isnan(loss):
                trained.append((loss, config, checkpoint))
        trained.sort(key=lambda trial: trial[0])
        if len(rung) == 1:
            return trained[0][1], trained[0][0]
        rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
        epochs *= eta
