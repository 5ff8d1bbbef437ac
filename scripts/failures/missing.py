"""Four ranks want to meet, and rank 2 is busy. monitored_barrier says who is missing."""

import datetime
import time

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()

if dist.get_rank() == 2:
    time.sleep(4)  # still loads its data
else:
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
