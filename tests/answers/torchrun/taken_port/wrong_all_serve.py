import torch.distributed as dist

REJECTED_WITH = "Rank 0 serves, all others are its clients"


def open_store(host):
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
