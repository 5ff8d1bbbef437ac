"""Two ranks and one GPU: both take cuda:0. The local rank should have chosen."""

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
