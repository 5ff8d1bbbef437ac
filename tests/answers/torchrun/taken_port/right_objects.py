import torch.distributed as dist


def open_store(host):
    if dist.get_rank() == 0:
        store = dist.TCPStore(host_name=host, port=0, is_master=True, wait_for_workers=False)
        dist.broadcast_object_list([store.port], src=0)
        return store
    port = [None]
    dist.broadcast_object_list(port, src=0)
    return dist.TCPStore(host_name=host, port=port[0], is_master=False)
