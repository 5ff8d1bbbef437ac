import torch
import torch.distributed as dist


def shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(tensor)
    both = [dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return got
