import torch
import torch.distributed as dist

REJECTED_WITH = "talks to ranks that are not its right neighbour"


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    place = torch.empty_like(tensor)
    for other in range(1, size):
        dist.recv(place, other)
        tensor += place
    for other in range(1, size):
        dist.send(tensor, other)
