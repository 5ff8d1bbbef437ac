"""Exercise 2 of the lab on Ray and tuning: successive halving. What is not here is in the official solution."""

import heapq
import math

from known_answers import right, wrong


@right("epoch by epoch")
def epoch_by_epoch():
    class Trial:
        def __init__(self, number, config):
            self.number, self.config = number, config
            self.loss, self.checkpoint, self.epochs = math.nan, None, 0

        def train_to(self, epochs, train):
            while self.epochs < epochs:
                self.loss, self.checkpoint = train(self.config, 1, self.checkpoint)
                self.epochs += 1

    def successive_halving(configs, train, eta, first):
        rung = [Trial(number, config) for number, config in enumerate(configs)]
        epochs = first
        while True:
            for trial in rung:
                try:
                    trial.train_to(epochs, train)
                except RuntimeError:
                    trial.loss = math.inf
            alive = [trial for trial in rung if math.isfinite(trial.loss)]
            ranked = heapq.nsmallest(max(1, len(rung) // eta), alive, key=lambda trial: (trial.loss, trial.number))
            if len(rung) == 1:
                return ranked[0].config, ranked[0].loss
            rung, epochs = ranked, epochs * eta

    return (successive_halving,)


@right("recursion")
def recursion():
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

    return (successive_halving,)


@right("numpy sorts stably, and the list is kept in its own order")
def numpy_sorts():
    import numpy as np

    def successive_halving(configs, train, eta, first):
        places, checkpoints, before, now = list(range(len(configs))), [None] * len(configs), 0, first
        while True:
            losses = np.full(len(configs), np.nan)
            for place in reversed(places):
                try:
                    losses[place], checkpoints[place] = train(
                        config=configs[place], epochs=now - before, checkpoint=checkpoints[place]
                    )
                except RuntimeError:
                    pass
            good = int(np.isfinite(losses).sum())
            order = np.argsort(losses, kind="stable")[: min(good, max(1, len(places) // eta))]
            if len(places) == 1:
                return configs[places[0]], losses[places[0]]
            places, before, now = sorted(int(one) for one in order), now, now * eta

    return (successive_halving,)


@right("a dict by place, and min again and again")
def by_place():
    def successive_halving(configs, train, eta, first):
        alive = dict.fromkeys(range(len(configs)))
        had, goal = 0, first
        while alive:
            n, found = len(alive), {}
            for place, checkpoint in alive.items():
                try:
                    loss, newest = train(dict(configs[place]), goal - had, checkpoint)
                except RuntimeError:
                    continue
                if loss == loss:
                    found[place] = loss, newest
            best = {}
            while found and len(best) < max(1, n // eta):
                place = min(found, key=lambda one: (found[one][0], one))
                best[place] = found.pop(place)
            if n == 1:
                return next((configs[place], loss) for place, (loss, _) in best.items())
            alive = {place: checkpoint for place, (_, checkpoint) in best.items()}
            had, goal = goal, goal * eta
        return None

    return (successive_halving,)


TRAIN, START = "train(config, epochs - had, checkpoint)", "    epochs, had = first, 0\n"
wrong("none goes on", "a loop that never ends", {"max(1, len(rung) // eta)": "len(rung) // eta"})
wrong("the list is sorted", "changes `configs`", {START: START + "    configs.sort(key=str)\n"})
wrong("the loss alone", "return two things", {"return config, loss": "return loss"})
wrong("loss first", "return two things", {"return config, loss": "return loss, config"})
wrong("rounded losses", "its loss", {"return config, loss": "return config, round(loss, 1)"})
wrong("trained a last time", "epochs of the configurations", {
    "loss, _, config, _ = trained[0]": "loss, _, config, checkpoint = trained[0]\n            train(config, 1, checkpoint)"
})  # fmt: skip
