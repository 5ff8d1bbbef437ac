"""Meets the others, as workers do that torchrun has started. With --late, rank 0 comes three seconds later."""

import sys
import time
from datetime import timedelta

import torch.distributed as dist

store, rank, world_size = next(dist.rendezvous("env://"))
keys = dist.PrefixStore("attempt_1", store) if "--prefix" in sys.argv else store
if "--late" in sys.argv and rank == 0:
    time.sleep(3)
    if "--prefix" not in sys.argv:
        try:
            store.wait(["gave up"], timedelta(seconds=10))  # until another rank has failed: then torchrun ends this one
        except dist.DistStoreError:
            sys.exit("nobody has failed: all others wait to be called by the dead")
        sys.exit("ended by torchrun, because another rank has failed")
try:
    dist.init_process_group("gloo", store=keys, rank=rank, world_size=world_size)
except RuntimeError:
    store.set("gave up", "yes")
    raise
dist.barrier()
