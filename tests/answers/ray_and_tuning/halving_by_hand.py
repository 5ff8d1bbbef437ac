"""Exercise 2 of the lab on Ray and tuning: successive halving, every epoch counted."""

# ruff: noqa: F401 (modules that changed answers use)
import copy
import heapq
import math
import random

import torch
from known_answers import right, wrong


def successive_halving(configs, train, eta, first):
    rung = [(place, config, None) for place, config in enumerate(configs)]
    epochs, had = first, 0
    while True:
        trained = []
        for place, config, checkpoint in rung:
            try:
                loss, checkpoint = train(config, epochs - had, checkpoint)
            except RuntimeError:
                continue
            if not math.isnan(loss):
                trained.append((loss, place, config, checkpoint))
        trained.sort(key=lambda trial: trial[:2])
        if len(rung) == 1:
            loss, _, config, _ = trained[0]
            return config, loss
        keep = max(1, len(rung) // eta)
        rung = [trial[1:] for trial in trained[:keep]]
        epochs, had = epochs * eta, epochs


SORT = "trained.sort(key=lambda trial: trial[:2])"
EQUAL = {
    "29: without `loss, _, config, _ = trained[0]`": "the loop over one trial has left both",
    "28: `trained.sort(key=lambda trial: trial[:2])` without key": "no two trials have the same place",
    "28: 2 → 3": "no two trials have the same place",
    "30: 0 → -1": "there is one trial",
    "32: arguments of `max(1, len(rung) // eta)` swapped": "max has no order",
}


# --- right, and written differently


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


# --- wrong


@wrong("always half", "half of the trials go on, whatever eta is")
def always_half():
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
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // 2)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("checkpoints of others", "the checkpoint of another one")
def checkpoints_of_others():
    def successive_halving(configs, train, eta, first):
        rung, checkpoints = list(configs), [None] * len(configs)
        epochs, had = first, 0
        while True:
            trained, saved = [], []
            for config, checkpoint in zip(rung, checkpoints, strict=True):
                try:
                    loss, checkpoint = train(config, epochs - had, checkpoint)
                except RuntimeError:
                    continue
                saved.append(checkpoint)
                if not math.isnan(loss):
                    trained.append((loss, config))
            trained.sort(key=lambda trial: trial[0])
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [config for _, config in trained[: max(1, len(rung) // eta)]]
            checkpoints = saved[: len(rung)]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("drops one of eta", "one of eta is dropped")
def drops_one_of_eta():
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

    return (successive_halving,)


@wrong("epochs on top", "so many more: train the difference only")
def epochs_on_top():
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

    return (successive_halving,)


@wrong("first of the list", "whatever their losses are")
def first_of_the_list():
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
            trained.sort(key=lambda trial: 0)
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("first rung decides", "the losses of the first rung decide")
def first_rung_decides():
    def successive_halving(configs, train, eta, first):
        rung = [(config, None) for config in configs]
        epochs, had = first, 0
        at_first = {}
        while True:
            trained = []
            for config, checkpoint in rung:
                try:
                    loss, checkpoint = train(config, epochs - had, checkpoint)
                except RuntimeError:
                    continue
                at_first.setdefault(str(config), loss)
                if not math.isnan(loss):
                    trained.append((loss, config, checkpoint))
            trained.sort(key=lambda trial: at_first[str(trial[1])])
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("highest go on", "those with the highest losses go on")
def highest_go_on():
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
            trained.sort(key=lambda trial: (-trial[0], configs.index(trial[1])))
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("last rung missing", "the last rung is missing")
def last_rung_missing():
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
            trained.sort(key=lambda trial: trial[0])
            if len(rung) // eta <= 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("loss of the first rung", "of an earlier rung")
def loss_of_the_first_rung():
    def successive_halving(configs, train, eta, first):
        rung = [(config, None) for config in configs]
        epochs, had = first, 0
        at_first = {}
        while True:
            trained = []
            for config, checkpoint in rung:
                try:
                    loss, checkpoint = train(config, epochs - had, checkpoint)
                except RuntimeError:
                    continue
                at_first.setdefault(str(config), loss)
                if not math.isnan(loss):
                    trained.append((loss, config, checkpoint))
            trained.sort(key=lambda trial: (trial[0], configs.index(trial[1])))
            if len(rung) == 1:
                return trained[0][1], at_first[str(trained[0][1])]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("losses as names", "not the trials with the lowest losses go on")
def losses_as_names():
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

    return (successive_halving,)


@wrong("nan goes on", "a trial that has failed goes on")
def nan_goes_on():
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
                trained.append((loss, config, checkpoint))
            trained.sort(key=lambda trial: (trial[0], configs.index(trial[1])))
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("never ends", "is there a loop without end")
def never_ends():
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
            trained.sort(key=lambda trial: trial[0])
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) - len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("none goes on", "none goes on where n // eta is 0")
def none_goes_on():
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

    return (successive_halving,)


@wrong("one rung too many", "yours trains it further")
def one_rung_too_many():
    def successive_halving(configs, train, eta, first):
        rung = [(config, None) for config in configs]
        epochs, had = first, 0
        finished = False
        while True:
            trained = []
            for config, checkpoint in rung:
                try:
                    loss, checkpoint = train(config, epochs - had, checkpoint)
                except RuntimeError:
                    continue
                if not math.isnan(loss):
                    trained.append((loss, config, checkpoint))
            trained.sort(key=lambda trial: trial[0])
            if finished:
                return trained[0][1], trained[0][0]
            finished = len(rung) == 1
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("only survivors counted", "trials that have failed are not counted for n")
def only_survivors_counted():
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
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(trained) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("rounds up", "n / eta is rounded up")
def rounds_up():
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
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: math.ceil(len(rung) / eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("same epochs in every rung", "rungs are at")
def same_epochs_in_every_rung():
    def successive_halving(configs, train, eta, first):
        rung = [(config, None) for config in configs]
        epochs = first
        while True:
            trained = []
            for config, checkpoint in rung:
                try:
                    loss, checkpoint = train(config, first, checkpoint)
                except RuntimeError:
                    continue
                if not math.isnan(loss):
                    trained.append((loss, config, checkpoint))
            trained.sort(key=lambda trial: trial[0])
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs *= eta

    return (successive_halving,)


@wrong("starts anew", "trials that go on start anew")
def starts_anew():
    def successive_halving(configs, train, eta, first):
        rung = [(config, None) for config in configs]
        epochs = first
        while True:
            trained = []
            for config, checkpoint in rung:
                try:
                    loss, checkpoint = train(config, epochs)
                except RuntimeError:
                    continue
                if not math.isnan(loss):
                    trained.append((loss, config, checkpoint))
            trained.sort(key=lambda trial: trial[0])
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs *= eta

    return (successive_halving,)


@wrong("sum of losses", "the sum of a trial's losses decides")
def sum_of_losses():
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

    return (successive_halving,)


@wrong("ties by the rung before", "better in the rung before goes on")
def ties_by_the_rung_before():
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
            trained.sort(key=lambda trial: trial[0])
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


@wrong("ties from behind", "comes last in configs goes on")
def ties_from_behind():
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
            trained.sort(key=lambda trial: (trial[0], -configs.index(trial[1])))
            if len(rung) == 1:
                return trained[0][1], trained[0][0]
            rung = [(config, checkpoint) for _, config, checkpoint in trained[: max(1, len(rung) // eta)]]
            epochs, had = epochs * eta, epochs

    return (successive_halving,)


# --- wrong, as changes of the right answer

wrong("ties by the batch size", "go on", {SORT: "trained.sort(key=lambda trial: (trial[0], trial[2]['batch_size']))"})
wrong("a stable sort that starts from the former order", "better in the rung before goes on", {
    SORT: "trained.sort(key=lambda trial: trial[0])"
})  # fmt: skip
wrong("only the first rung may crash", "raised OutOfMemory", {
    "            except RuntimeError:\n": "            except RuntimeError:\n                if had:\n                    raise\n"
})  # fmt: skip
wrong("a crash ends all", "raised OutOfMemory", {"except RuntimeError:": "except ZeroDivisionError:"})
wrong("what has crashed is started again", "a trial that has crashed is started again", {
    "            except RuntimeError:\n                continue": "            except RuntimeError:\n"
    "                loss, checkpoint = math.inf, None",
})  # fmt: skip
wrong("every exception", "swallows a", {"except RuntimeError:": "except Exception:"})
wrong("only RuntimeError itself", "raised OutOfMemory", {
    "            except RuntimeError:\n": "            except RuntimeError as error:\n"
    "                if type(error) is not RuntimeError:\n                    raise\n"
})  # fmt: skip
wrong(
    "a falsy checkpoint is none",
    "trials that go on start anew",
    {"epochs - had, checkpoint)": "epochs - had, checkpoint or None)"},
)
wrong("one trial for each learning rate", "every configuration is trained in the first rung", {
    "for place, config in enumerate(configs)]": "for place, config in enumerate({c['lr']: c for c in configs}.values())]"
})  # fmt: skip
wrong("the lowest loss ever", "the lowest loss that a trial ever had decides", {
    "    rung = [(place": "    ever = {}\n    rung = [(place",
    "trained.append((loss,": "ever[place] = min(loss, ever.get(place, loss))\n                trained.append((ever[place],",
})  # fmt: skip
wrong(
    "rounded losses", "not one that train never returned", {"trained.append((loss,": "trained.append((round(loss, 1),"}
)
wrong("inf is no failure", "a trial that has failed goes on", {
    "if not math.isnan(loss):": "if loss != math.inf:",
})  # fmt: skip
wrong(
    "the list is sorted",
    "`configs[1]` was replaced",
    {"    epochs, had = first, 0\n": "    epochs, had = first, 0\n    configs.sort(key=str)\n"},
)
wrong("the configurations get more keys", "something is trained that is not in configs", {
    "            try:\n": "            config['epochs'] = epochs\n            config.pop('epochs')\n            config['lr'] *= 1.0 + 1e-15\n            try:\n"
})  # fmt: skip
wrong("asks once more", "no trial's newest checkpoint", {
    "            return config, loss": "            train(config, 1, trained[0][3])\n            return config, train(config, 1, trained[0][3])[0]"
})  # fmt: skip
wrong("trained a last time", "rungs are at", {
    "            loss, _, config, _ = trained[0]\n": "            loss, _, config, checkpoint = trained[0]\n            train(config, 1, checkpoint)\n"
})  # fmt: skip
wrong("the loss alone", "return two things", {"            return config, loss": "            return loss"})
wrong("loss first", "return two things", {"            return config, loss": "            return loss, config"})
wrong(
    "a seed of its own",
    "Python's random numbers",
    {"    epochs, had = first, 0\n": "    epochs, had = first, 0\n    random.seed(0)\n"},
)
wrong("ends when one is left of many", "the last rung is missing", {"if len(rung) == 1:": "if len(trained) == 1:"})
wrong("epochs are squared", "rungs are at", {"epochs, had = epochs * eta,": "epochs, had = max(eta, epochs**2),"})
wrong("one more goes on", "of the n trials of a rung n // eta go on", {"// eta)": "// eta + 1)"})
wrong("nan is the lowest loss", "a trial that has failed goes on", {
    "if not math.isnan(loss):": "loss = -math.inf if math.isnan(loss) else loss\n            if True:"
})  # fmt: skip
wrong("eta is 3", "of the n trials of a rung n // eta go on", {"len(rung) // eta": "len(rung) // 3"})
wrong("the first rung has one epoch", "epochs", {"epochs, had = first, 0": "epochs, had = 1, 0"})
wrong("no memory is a failure too", "swallows a MemoryError of train", {
    "except RuntimeError": "except (RuntimeError, MemoryError)"
})  # fmt: skip
wrong(
    "checkpoints are copied",
    "is given a copy of a checkpoint",
    {
        "trained.append((loss, place, config, checkpoint))": "trained.append((loss, place, config, copy.deepcopy(checkpoint)))"
    },
)
wrong(
    "losses are rounded",
    "losses that hardly differ count as equal",
    {SORT: "trained.sort(key=lambda trial: (round(trial[0], 6), trial[1]))"},
)
wrong(
    "trainings are kept from search to search",
    "every configuration is trained in the first rung",
    {
        "loss, checkpoint = train(config, epochs - had, checkpoint)": "key = str((config, epochs, checkpoint))\n"
        "                kept = vars(successive_halving)\n"
        "                kept[key] = kept.get(key) or train(config, epochs - had, checkpoint)\n"
        "                loss, checkpoint = kept[key]"
    },
)
