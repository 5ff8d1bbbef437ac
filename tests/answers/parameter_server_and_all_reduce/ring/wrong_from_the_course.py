import torch.distributed as dist

REJECTED_WITH = "write it yourself, that is the point"


def ring_all_reduce(tensor):
    from utils.algorithms import all_reduce  # noqa: F401

    dist.send(tensor, (dist.get_rank() + 1) % dist.get_world_size()) if dist.get_rank() == 0 else None
    dist.recv(tensor, 0) if dist.get_rank() == 1 else None
