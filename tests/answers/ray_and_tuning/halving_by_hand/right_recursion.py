import math


def train_all(rung, train, epochs):
    for place, config, checkpoint in rung:
        try:
            loss, checkpoint = train(config, epochs, checkpoint)
        except RuntimeError:
            continue
        if loss == loss:
            yield loss, place, config, checkpoint


def successive_halving(configs, train, eta, first):
    def search(rung, epochs, more):
        trained = sorted(train_all(rung, train, more), key=lambda trial: trial[:2])
        if len(rung) == 1:
            loss, _, config, _ = trained[0]
            return config, loss
        survivors = [trial[1:] for trial in trained]
        return search(survivors[: math.ceil(max(1, len(rung) // eta))], epochs * eta, epochs * (eta - 1))

    return search([(place, config, None) for place, config in enumerate(configs)], first, first)
