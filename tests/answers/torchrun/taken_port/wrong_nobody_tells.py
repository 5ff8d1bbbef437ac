import torch.distributed as dist

REJECTED_WITH = "rank 0 must tell the others its store.port"


def open_store(host):
    rank = dist.get_rank()
    return dist.TCPStore(host, 0, is_master=rank == 0, wait_for_workers=False)
