"""Exercise 7 of the lab on torchrun: a store whose port nobody else has. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

SERVE = "        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)\n        port[0] = store.port\n"
TELL, RETURN, DEF = "    dist.broadcast(port, src=0)\n", "    return store", "def open_store(host):\n"
CLIENT = "    if dist.get_rank() > 0:\n        store = dist.TCPStore(host, port.item())\n"
BODY = "    port = torch.zeros(1, dtype=torch.int64)\n    if dist.get_rank() == 0:\n" + SERVE + TELL + CLIENT + RETURN
SOCKET = "        import socket\n\n        listener = socket.create_server((host, 0))\n"
OPEN = (
    "        number = 20_000 + __import__('os').getpid() % 5_000\n        store = None\n        while store is None:\n"
    "            number += 1\n            try:\n{}                store = dist.TCPStore(host, number, None, True, "
    "wait_for_workers=False)\n            except (OSError, RuntimeError):\n                continue\n"
    "        port[0] = number\n"
)
PROBE = "                with __import__('socket').socket() as probe:\n                    probe.bind((host, number))\n"
right("objects, named arguments", {
    "TCPStore(host, 0,": "TCPStore(host_name=host, port=0,", "(host, port.item())": "(host_name=host, port=port[0])",
    TELL: "    port = [int(port)]\n    dist.broadcast_object_list(port, src=0)\n",
})  # fmt: skip
right("a socket of its own, which the store takes over", {
    SERVE: SOCKET + "        port[0] = listener.getsockname()[1]\n        store = dist.TCPStore(host, int(port), "
           "is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())\n"
})  # fmt: skip
right("the next port until one can be opened: whoever opens it has it", {
    SERVE: OPEN.format(""), TELL: "    dist.all_reduce(port)\n", RETURN: RETURN + " if port[0] else None",
})  # fmt: skip
right("free ports are looked for until a store opens on one", {SERVE: OPEN.format(PROBE)})
right("an all-reduce, positional arguments, and the number of clients", {
    "(host, 0, is_master=True, wait_for_workers=False)":
        "(host, 0, dist.get_world_size(), True, __import__('datetime').timedelta(seconds=30), False)",
    TELL: "    dist.all_reduce(port, op=dist.ReduceOp.MAX)\n",
    "(host, port.item())": "(host, int(port), dist.get_world_size(), False)",
})  # fmt: skip
right("a socket of its own, told to all, in a store that waits for its clients", {
    SERVE: SOCKET + "        port[0] = listener.getsockname()[1]\n", CLIENT: "    n = dist.get_world_size()\n",
    RETURN: "    if dist.get_rank():\n        return dist.TCPStore(host, int(port), n, False)\n"
            "    return dist.TCPStore(host, int(port), n, True, master_listen_fd=listener.detach())",
})  # fmt: skip
right("rank 0 has a client too, and keeps what serves", {
    DEF: "SERVERS = []\n\n\n" + DEF, SERVE: SERVE + "        SERVERS.append(store)\n", "if dist.get_rank() > 0:": "if True:"
})  # fmt: skip
right("through torchrun's store, by a name for each call", {
    DEF: "CALLS = []\n\n\n" + DEF,
    TELL: "    told, name = dist.distributed_c10d._get_default_store(), f'port {len(CALLS)}'\n    CALLS.append(name)\n"
          "    if dist.get_rank() == 0:\n        told.set(name, str(store.port))\n    port[0] = int(told.get(name))\n",
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
wrong("a file", "what comes back", {RETURN: "    return dist.FileStore('/dev/shm/none', -1)"})
wrong("waits for its clients", "wait in broadcast", {
    "0, is_master=True, wait_for_workers=False": "0, dist.get_world_size(), is_master=True"
})  # fmt: skip
wrong("rank 0 lets its store go", "nobody holds it any more", {
    "    if dist.get_rank() > 0:\n": "    store = None\n    if True:\n"
})  # fmt: skip
wrong("rank 1 holds it", "the stores that this rank serves", {
    "if dist.get_rank() == 0:": "if dist.get_rank() == dist.get_world_size() - 1:", "src=0": "src=dist.get_world_size() - 1",
    "if dist.get_rank() > 0:": "if dist.get_rank() != dist.get_world_size() - 1:",
})  # fmt: skip
