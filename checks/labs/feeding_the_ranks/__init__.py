"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

samplers.py          training, evaluation, stream: samples dealt out to ranks, and the accuracy over all of them
loops.py             every_epoch, resumed, augmented, uneven: what comes to the steps of the ranks
simulated_loader.py  workers: how many a loader needs, on simulated machines
"""

from checks.labs.feeding_the_ranks.loops import augmented, every_epoch, resumed, uneven
from checks.labs.feeding_the_ranks.samplers import evaluation, stream, training
from checks.labs.feeding_the_ranks.simulated_loader import workers

EXERCISES = [training, evaluation, every_epoch, resumed, augmented, uneven, workers, stream]
