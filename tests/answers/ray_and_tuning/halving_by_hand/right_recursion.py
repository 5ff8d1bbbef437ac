import math


def train_all(rung, train, epochs):
    for config, checkpoint in rung:
        try:
            loss, checkpoint = train(config, epochs, checkpoint)
        except RuntimeError:
            continue
        if loss == loss:
            yield loss, config, checkpoint


def successive_halving(configs, train, eta, first):
    def search(rung, epochs, more):
        trained = sorted(train_all(rung, train, more), key=lambda trial: trial[0])
        if len(rung) == 1:
            loss, config, _ = trained[0]
            return config, loss
        survivors = [(config, checkpoint) for _, config, checkpoint in trained]
        return search(survivors[: math.ceil(max(1, len(rung) // eta))], epochs * eta, epochs * (eta - 1))

    return search([(config, None) for config in configs], first, first)
