"""The exercise of this lab: a training with Ray Train that goes on after accidents.

trainings.py   goes_on: two calls, and what is seen of them
team.py        what the workers get: an epoch in which they meet, and in which one is killed
"""

from checks.labs.ray_train.trainings import goes_on

EXERCISES = [goes_on]
