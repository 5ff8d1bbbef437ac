"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

predicting.py     predict: how many references a function adds
measuring.py      measure: a tool that counts them
collecting.py     hidden_means, failing_steps.py broken_batches: two loops; leaks.py: what is alive after each step
sharing.py        processes: items for processes; process_items.py: who computes them
holding.py        held: how long a launch holds the GIL, from times of threads
launch_times.py   launch_cost: a step's time, and how large its graphs have to be
"""

from checks.labs.gil_and_refcounting.collecting import hidden_means
from checks.labs.gil_and_refcounting.failing_steps import broken_batches
from checks.labs.gil_and_refcounting.holding import held
from checks.labs.gil_and_refcounting.launch_times import launch_cost
from checks.labs.gil_and_refcounting.measuring import measure
from checks.labs.gil_and_refcounting.predicting import predict
from checks.labs.gil_and_refcounting.sharing import processes

EXERCISES = [predict, measure, hidden_means, broken_batches, processes, held, launch_cost]
