import torch
import torch.distributed as dist

REJECTED_WITH = "sends more than a number"


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths, incoming = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
    lengths[rank] = len(tensor)
    for _ in range(size - 1):
        sending = dist.isend(lengths, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        lengths = torch.maximum(lengths, incoming)
    if len(set(lengths.tolist())) > 1:
        raise ValueError(f"different lengths: {lengths.tolist()}")
