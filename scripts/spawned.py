"""Two ranks without torchrun: torch.multiprocessing.spawn, and all by hand. Rank 1 is killed."""

import os
import signal
import time

import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, world_size: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    print(f"rank {rank} of {dist.get_world_size()} is here", flush=True)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    print(f"rank {rank} is done")


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.spawn(work, args=(2, store.port), nprocs=2)
