"""The exercises of this lab: shards cut anew by hand, DCP in use, a save in the background that is safe.

resharding.py     reshard: which bytes are read; sharded_store.py has the files
backgrounds.py    in_background: saves while the training goes on, on a disk that waits for the check
thread_errors.py  errors: what write raises
other_ranks.py    elsewhere: saved on N ranks with DCP, loaded on M
"""

from checks.labs.sharded_checkpoints.backgrounds import in_background
from checks.labs.sharded_checkpoints.other_ranks import elsewhere
from checks.labs.sharded_checkpoints.resharding import reshard
from checks.labs.sharded_checkpoints.thread_errors import errors

EXERCISES = [reshard, in_background, errors, elsewhere]
