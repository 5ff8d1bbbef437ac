import socket

import torch
import torch.distributed as dist


def open_store(host):
    port = torch.zeros((), dtype=torch.int64)
    if dist.get_rank() == 0:
        listener = socket.create_server((host, 0))
        port.fill_(listener.getsockname()[1])
        number = int(port)
        store = dist.TCPStore(host, number, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    dist.broadcast(port, src=0)
    return store if dist.get_rank() == 0 else dist.TCPStore(host, port.item())
