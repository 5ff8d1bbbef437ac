"""Ends well, and yet with exit code -6: gloo finishes a collective while Python is already shutting down."""

import time

import torch
import torch.distributed as dist


class Large:
    """It takes Python a moment to clean this up at the end."""

    def __del__(self) -> None:
        time.sleep(3)


dist.init_process_group("gloo")
dist.barrier()
large = Large()
print("the model is saved", flush=True)
if dist.get_rank() == 1:
    time.sleep(1.5)
work = dist.all_reduce(torch.ones(1), async_op=True)  # the last loss, for the log: nobody waits for it
work.get_future().add_done_callback(lambda future: None)
if dist.get_rank() == 1:
    time.sleep(3)
