"""The exercises of this lab. Two are judged by running the layout that an answer chooses (see ``simulated.py``).

reasoning.py   reasons: bytes, bubble and seconds of a plan, by hand
planning.py    on_infiniband, on_ethernet: a plan within 5 % of the best
repairing.py   repair: a plan that runs out of memory
finishing.py   long_run: days, failures and euros of 15 trillion tokens
simulated.py   seconds and GiB of a plan, and simulated.json: of those that have run before
"""

from checks.labs.choosing.finishing import long_run
from checks.labs.choosing.planning import on_ethernet, on_infiniband
from checks.labs.choosing.reasoning import reasons
from checks.labs.choosing.repairing import repair

EXERCISES = [reasons, on_infiniband, on_ethernet, repair, long_run]
