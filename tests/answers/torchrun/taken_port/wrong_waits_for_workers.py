import torch
import torch.distributed as dist

REJECTED_WITH = "wait for each other"


def open_store(host):
    rank = dist.get_rank()
    if rank == 0:
        store = dist.TCPStore(host, 0, dist.get_world_size(), is_master=True)
    port = torch.tensor([store.port if rank == 0 else 0])
    dist.broadcast(port, src=0)
    if rank > 0:
        store = dist.TCPStore(host, int(port), dist.get_world_size())
    return store
