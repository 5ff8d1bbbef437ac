"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

scripts.py         script: on ranks of the course, and with the real torchrun
typed_lines.py     typed: a line that bash types on every node
stopping.py        stop_early: when all ranks stop
shifting.py        neighbours: a ring of messages
gathering.py       different_lengths: parts of all ranks
broken_batches.py  swallowed: broken batches, and mistakes that come out
opened_stores.py   taken_port: a port that the system chooses
showing.py         show: how a program of the lab ends on each rank
"""

from checks.labs.torchrun.broken_batches import swallowed
from checks.labs.torchrun.gathering import different_lengths
from checks.labs.torchrun.opened_stores import taken_port
from checks.labs.torchrun.scripts import script
from checks.labs.torchrun.shifting import neighbours
from checks.labs.torchrun.showing import show
from checks.labs.torchrun.stopping import stop_early
from checks.labs.torchrun.typed_lines import typed

EXERCISES = [script, typed, stop_early, neighbours, different_lengths, swallowed, taken_port]

__all__ = ["EXERCISES", "show"]
