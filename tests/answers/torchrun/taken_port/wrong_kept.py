import torch
import torch.distributed as dist

REJECTED_WITH = "The two jobs share one store"


kept = {}


def open_store(host):
    if "store" not in kept:
        rank, store = dist.get_rank(), None
        if rank == 0:
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        port = torch.tensor([store.port if rank == 0 else 0])
        dist.broadcast(port, src=0)
        kept["store"] = store or dist.TCPStore(host, int(port))
    return kept["store"]
