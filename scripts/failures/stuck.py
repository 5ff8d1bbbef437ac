"""Rank 1 waits in a barrier, and rank 0 is busy. Both can say where they are."""

import faulthandler
import os
import signal
import time

import torch
import torch.distributed as dist

faulthandler.register(signal.SIGUSR1)  # on demand: kill -USR1 PID, from any terminal of this node

dist.init_process_group("gloo")
pids = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
dist.all_gather(pids, torch.tensor([os.getpid()]))

if dist.get_rank() == 0:
    faulthandler.dump_traceback_later(0.5)  # unasked: if the next line takes more than half a second
    time.sleep(1)
    faulthandler.cancel_dump_traceback_later()
    os.kill(pids[1].item(), signal.SIGUSR1)  # as if you had typed it
    time.sleep(0.3)
dist.barrier()
