"""The exercises of this lab. Each check plays lives of an answer in fresh processes, and refuses (``checks/engine``).

saves.py        saving: killed at every step with files
resuming.py     resumed, on_ranks: twenty lives of a training, and some of two ranks with damaged checkpoints
resume_task.py  the training that is resumed: given to who does the exercise
"""

from checks.labs.checkpointing.resuming import on_ranks, resumed
from checks.labs.checkpointing.saves import saving

EXERCISES = [saving, resumed, on_ranks]
