"""Four ranks; one of them computes longer. Each notes how long it computed and how long it waited for the others."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
computed = waited = 0.0
dist.barrier()

for _ in range(10):
    start = time.perf_counter()
    time.sleep(0.1 if rank == 2 else 0.01)  # forward and backward; on a GPU: torch.cuda.synchronize() after it
    ready = time.perf_counter()
    dist.all_reduce(torch.ones(1000))
    computed, waited = computed + ready - start, waited + time.perf_counter() - ready

times = [torch.empty(2) for _ in range(dist.get_world_size())]
dist.all_gather(times, torch.tensor([computed, waited]))
if rank == 0:
    print("rank  computed  waited in all_reduce  (parts of a whole step)")
    for number, part in enumerate(times):
        print(f"{number:4}  {part[0] / part.sum():8.2f}  {part[1] / part.sum():20.2f}")
    least = min(range(len(times)), key=lambda number: times[number][1])
    print("waits the least:", least)
