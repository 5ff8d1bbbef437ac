import torch
import torch.distributed as dist

REJECTED_WITH = "sends too often"


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [torch.tensor([len(tensor)]) for _ in range(size)]
    for step in range(size if size > 1 else 0):
        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)
        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)
        sending.wait()
    lengths = [length.item() for length in lengths]
    if len(set(lengths)) > 1:
        raise ValueError(f"different lengths: {lengths}")
