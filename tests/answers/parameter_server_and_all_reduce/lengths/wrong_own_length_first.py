import torch
import torch.distributed as dist

REJECTED_WITH = "should name the lengths of all ranks, rank 0 first"


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [torch.tensor([len(tensor)]) for _ in range(size)]
    for step in range(size - 1):
        sending = dist.isend(lengths[step], (rank + 1) % size)
        dist.recv(lengths[step + 1], (rank - 1) % size)
        sending.wait()
    if len({length.item() for length in lengths}) > 1:
        raise ValueError(f"different lengths: {[length.item() for length in lengths]}")
