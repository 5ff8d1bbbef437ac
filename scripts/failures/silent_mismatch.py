"""Both ranks add up two numbers: rank 0 has floats, rank 1 has integers."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

count = torch.tensor([1, 1], dtype=torch.float32 if rank == 0 else torch.int32)
dist.all_reduce(count)
print(count.tolist())
