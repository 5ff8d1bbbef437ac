"""Meets the others at MASTER_ADDR, or says why not. Nothing is wrong with this program."""

import datetime
import sys

import torch.distributed as dist

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
dist.barrier()  # nobody leaves before all have met
print("met")
