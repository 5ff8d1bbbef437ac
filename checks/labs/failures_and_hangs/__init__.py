"""The exercises of this lab, and what their checks draw, for whoever wants to see where an answer went wrong.

logs.py         raw_logs: five logs that are stored, and others that are made of their lines
recorders.py    flight_recorder
standstills.py  stacks
"""

from checks.labs.failures_and_hangs.logs import drawn_log, raw_logs
from checks.labs.failures_and_hangs.recorders import drawn_dumps, flight_recorder
from checks.labs.failures_and_hangs.standstills import drawn_stacks, stacks

EXERCISES = [raw_logs, flight_recorder, stacks]

__all__ = ["EXERCISES", "drawn_dumps", "drawn_log", "drawn_stacks"]
