"""Rank 1 fails before it has joined. The others wait for it: here for three seconds, by default for half an hour."""

import datetime
import os
import sys
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(4)  # copies the data to this node
    sys.exit("no space left on this node")

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
