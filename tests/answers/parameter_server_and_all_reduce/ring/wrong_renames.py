import torch
import torch.distributed as dist

REJECTED_WITH = "work in place"


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    latest = tensor
    for _ in range(size - 1):
        place = torch.empty_like(tensor)
        sending = dist.isend(latest, (rank + 1) % size)
        dist.recv(place, (rank - 1) % size)
        sending.wait()
        tensor = tensor + place
        latest = place
    return tensor
