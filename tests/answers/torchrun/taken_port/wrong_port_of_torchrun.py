import os

import torch.distributed as dist

REJECTED_WITH = "which your program has chosen"


def open_store(host):
    port = int(os.environ["MASTER_PORT"]) + 1
    return dist.TCPStore(host, port, dist.get_world_size(), is_master=dist.get_rank() == 0)
