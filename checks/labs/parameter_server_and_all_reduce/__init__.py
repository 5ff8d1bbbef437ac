"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

agreeing.py     lengths: all ranks learn all lengths, and raise together
rings.py        ring: reduce-scatter and all-gather
halvings.py     halving: halves of halves, and back
hierarchies.py  levels: rings inside the nodes and between them
servers.py      server: bounded staleness
summing.py      what the all-reduces share: mistakes, their tensors, their messages, the memory that they hold
"""

from checks.labs.parameter_server_and_all_reduce.agreeing import lengths
from checks.labs.parameter_server_and_all_reduce.halvings import halving
from checks.labs.parameter_server_and_all_reduce.hierarchies import levels
from checks.labs.parameter_server_and_all_reduce.rings import ring
from checks.labs.parameter_server_and_all_reduce.servers import server

EXERCISES = [lengths, ring, halving, levels, server]
