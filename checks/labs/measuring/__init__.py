"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

timing.py      step_time: a clock around work that has not run yet
shares.py      utilization: MFU and HFU
diagnosing.py  diagnose: the rank that all others wait for
hiding.py      exposed: communication while nothing is computed
"""

from checks.labs.measuring.diagnosing import diagnose
from checks.labs.measuring.hiding import exposed
from checks.labs.measuring.shares import utilization
from checks.labs.measuring.timing import step_time

EXERCISES = [step_time, utilization, diagnose, exposed]
