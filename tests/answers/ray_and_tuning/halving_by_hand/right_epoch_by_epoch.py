import heapq
import math


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
