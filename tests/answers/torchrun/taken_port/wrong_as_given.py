import torch.distributed as dist

REJECTED_WITH = "which your program has chosen"


def open_store(host):
    rank = dist.get_rank()
    return dist.TCPStore(host, 29500, dist.get_world_size(), is_master=rank == 0)
