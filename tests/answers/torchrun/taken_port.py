"""Exercise 7 of the lab on torchrun: a store whose port nobody else has. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

SERVE = "        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)\n        port[0] = store.port\n"
TELL, RETURN, DEF = "    dist.broadcast(port, src=0)\n", "    return store", "def open_store(host):\n"
CLIENT = "    if dist.get_rank() > 0:\n        store = dist.TCPStore(host, port.item())\n"
SOCKET = "        import socket\n\n        listener = socket.create_server((host, 0))\n"
right("objects, named arguments", {
    "TCPStore(host, 0,": "TCPStore(host_name=host, port=0,", "(host, port.item())": "(host_name=host, port=port[0])",
    TELL: "    port = [int(port)]\n    dist.broadcast_object_list(port, src=0)\n",
})  # fmt: skip
right("a socket of its own, which the store takes over", {
    SERVE: SOCKET + "        port[0] = listener.getsockname()[1]\n        store = dist.TCPStore(host, int(port), "
           "is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())\n"
})  # fmt: skip


@right("messages, and a class of its own")
def messages():
    def open_store(host):
        class Store(dist.TCPStore):
            pass

        me, port = dist.get_rank(), torch.zeros(1, dtype=torch.int64)
        if me == 0:
            store = Store(host, port=0, is_master=True, wait_for_workers=False)
            port[0] = store.port
            for other in range(1, dist.get_world_size()):
                dist.send(port, other)
            return store
        dist.recv(port, 0)
        return Store(host, port.item())

    return (open_store,)


CHOSEN = "is not free any more. Whoever chooses a port cannot know that"
wrong("a port of one's own", CHOSEN, {"TCPStore(host, 0, is": "TCPStore(host, 29511, is"})
wrong("looked for before", CHOSEN, {
    SERVE: SOCKET + "        port[0] = listener.getsockname()[1]\n        listener.close()\n"
           "        store = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)\n"
})  # fmt: skip
wrong("nobody tells", "a client goes to port 0, where nobody is", {TELL: ""})
wrong("waits for its clients", "wait in broadcast", {
    "0, is_master=True, wait_for_workers=False": "0, dist.get_world_size(), is_master=True"
})  # fmt: skip
wrong("rank 0 lets its store go", "nobody holds it any more", {
    "    if dist.get_rank() > 0:\n": "    store = None\n    if True:\n"
})  # fmt: skip
