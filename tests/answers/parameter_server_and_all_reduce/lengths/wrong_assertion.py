import torch
import torch.distributed as dist

REJECTED_WITH = "raises AssertionError: raise ValueError"


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [torch.tensor([len(tensor)]) for _ in range(size)]
    for step in range(size - 1):
        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)
        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)
        sending.wait()
    lengths = [length.item() for length in lengths]
    assert len(set(lengths)) == 1, f"different lengths: {lengths}"
