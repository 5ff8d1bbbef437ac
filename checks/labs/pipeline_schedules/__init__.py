"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

order.py    schedule: who does what in which order, for any p, m and v
halves.py   backward_halves: input gradients now, weight gradients later
tied.py     tied_step: one matrix on the first and the last rank
cutting.py  cut: stages of equal time, within their memory
"""

from checks.labs.pipeline_schedules.cutting import cut
from checks.labs.pipeline_schedules.halves import backward_halves
from checks.labs.pipeline_schedules.order import schedule
from checks.labs.pipeline_schedules.tied import tied_step

EXERCISES = [schedule, backward_halves, tied_step, cut]
