"""Successive halving. What is not here is in the official solution."""

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
            while self.epochs < epochs and not (self.epochs and math.isnan(self.loss)):
                self.loss, self.checkpoint = train(self.config, epochs - self.epochs, self.checkpoint)
                self.epochs = epochs

    def successive_halving(configs, train, eta, first):
        rung = [Trial(number, config) for number, config in enumerate(configs)]
        epochs = first
        while True:
            for trial in rung:
                trial.train_to(epochs, train)
            alive = [trial for trial in rung if math.isfinite(trial.loss)]
            ranked = heapq.nsmallest(max(1, len(rung) // eta), alive, key=lambda trial: (trial.loss, trial.number))
            if len(rung) == 1:
                return ranked[0].config, ranked[0].loss
            rung, epochs = ranked, epochs * eta

    return (successive_halving,)


@right("recursion")
def recursion():
    def successive_halving(configs, train, eta, first):
        def search(rung, epochs, more):
            trained = [(*train(config, more, kept), place, config) for place, config, kept in rung]
            order = sorted((one for one in trained if one[0] == one[0]), key=lambda one: (one[0], one[2]))
            if len(rung) == 1:
                return order[0][3], order[0][0]
            survivors = [(place, config, kept) for _, kept, place, config in order]
            return search(survivors[: max(1, len(rung) // eta)], epochs * eta, epochs * (eta - 1))

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
                losses[place], checkpoints[place] = train(
                    config=configs[place], epochs=now - before, checkpoint=checkpoints[place]
                )
            good = int(np.isfinite(losses).sum())
            order = np.argsort(losses, kind="stable")[: min(good, max(1, len(places) // eta))]
            if len(places) == 1:
                return configs[places[0]], losses[places[0]]
            places, before, now = sorted(int(one) for one in order), now, now * eta

    return (successive_halving,)


START = "    epochs, had = first, 0\n"
wrong("the list is sorted", "changes `configs`", {START: START + "    configs.sort(key=str)\n"})
wrong("loss first", "return two things", {"return config, loss": "return loss, config"})
wrong("rounded losses", "its loss", {"return config, loss": "return config, round(loss, 1)"})
wrong("trained a last time", "epochs of the configurations", {
    "loss, _, config, _ = trained[0]": "loss, _, config, checkpoint = trained[0]\n            train(config, 1, checkpoint)"
})  # fmt: skip
wrong("another one's checkpoint", "a checkpoint that is not its own", {
    "rung = [trial[1:] for trial in trained[:keep]]":
    "rung = [(*one[1:3], saved) for one, (*_, saved) in zip(trained[:keep], sorted(trained, key=lambda t: t[1]))]"
})  # fmt: skip
