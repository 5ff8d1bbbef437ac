"""The exercises of this lab: random search and halving, by hand and with Ray Tune.

random_searching.py   random_by_hand, and what every search is judged by: budget, samples, the best
halving.py            halving_by_hand: how far each configuration is trained
tuning.py             random_with_tune and early_stopping, in Ray
notes.py              trainings, in Ray's processes too, that write down what they do
rays.py               a Ray for one judgement
"""

from checks.labs.ray_and_tuning.halving import halving_by_hand
from checks.labs.ray_and_tuning.random_searching import random_by_hand
from checks.labs.ray_and_tuning.tuning import early_stopping, random_with_tune

EXERCISES = [random_by_hand, halving_by_hand, random_with_tune, early_stopping]
