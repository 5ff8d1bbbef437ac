import torch
import torch.distributed as dist

REJECTED_WITH = "sends the whole tensor in one message"


def ring_all_reduce(tensor):
    """The sum grows from rank 0 to the last rank, and then goes round once more."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    place = torch.empty_like(tensor)
    if rank > 0:
        dist.recv(place, rank - 1)
        tensor += place
    dist.send(tensor, (rank + 1) % size)
    if rank < size - 1:
        dist.recv(tensor, (rank - 1) % size)
        if rank < size - 2:
            dist.send(tensor, rank + 1)
