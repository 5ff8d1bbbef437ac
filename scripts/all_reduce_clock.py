"""All-reduces one megabyte again and again and prints how many seconds each took. Gives up after two seconds in one."""

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # to meet may take longer
group = dist.new_group(timeout=datetime.timedelta(seconds=2))
megabyte = torch.zeros(250_000)
while True:
    start = time.perf_counter()
    try:
        dist.all_reduce(megabyte, group=group)
    except RuntimeError as error:
        print(f"gave up after {time.perf_counter() - start:.1f} s: {error}", flush=True)
        raise
    print(f"{time.perf_counter() - start:.4f}", flush=True)
