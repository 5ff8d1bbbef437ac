import torch
import torch.distributed as dist

REJECTED_WITH = "sends the whole tensor in one message"


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    latest, place = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(latest, (rank + 1) % size)
        dist.recv(place, (rank - 1) % size)
        sending.wait()
        tensor += place
        latest, place = place, latest
