import socket

import torch
import torch.distributed as dist

REJECTED_WITH = "any other program may have it by then"


def open_store(host):
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        with socket.socket() as probe:
            probe.bind((host, 0))
            port[0] = probe.getsockname()[1]
    dist.broadcast(port, src=0)
    return dist.TCPStore(host, int(port), dist.get_world_size(), is_master=dist.get_rank() == 0)
