"""Exercise 6 of the lab on torchrun: a store whose port nobody else can have. What is not here is in the official solution."""

import itertools
import os
import random
import socket

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("objects, named arguments")
def objects():
    def open_store(host):
        if dist.get_rank() == 0:
            store = dist.TCPStore(host_name=host, port=0, is_master=True, wait_for_workers=False)
            dist.broadcast_object_list([store.port], src=0)
            return store
        port = [None]
        dist.broadcast_object_list(port, src=0)
        return dist.TCPStore(host_name=host, port=port[0], is_master=False)

    return (open_store,)


@right("a socket of its own, which the store takes over")
def own_socket():
    def open_store(host):
        port = torch.zeros((), dtype=torch.int64)
        if dist.get_rank() == 0:
            listener = socket.create_server((host, 0))
            number = listener.getsockname()[1]
            port.fill_(number)
            fd = listener.detach()
            store = dist.TCPStore(host, number, is_master=True, wait_for_workers=False, master_listen_fd=fd)
        dist.broadcast(port, src=0)
        return store if dist.get_rank() == 0 else dist.TCPStore(host, port.item())

    return (open_store,)


@right("the next port until one can be opened: whoever opens it has it")
def until_one_opens():
    def open_store(host):
        port = torch.zeros(1, dtype=torch.int64)
        if dist.get_rank() == 0:
            for number in range(random.Random(os.getpid()).randint(20_000, 30_000), 32_000):
                try:
                    store = dist.TCPStore(host, number, None, True, wait_for_workers=False)
                except dist.DistNetworkError:
                    continue
                port[0] = number
                break
        dist.all_reduce(port)
        return store if port[0] and dist.get_rank() == 0 else dist.TCPStore(host, int(port))

    return (open_store,)


@right("an all-reduce, positional arguments, and the number of clients")
def positional():
    from datetime import timedelta

    from torch.distributed import TCPStore

    def open_store(host):
        me, n = dist.get_rank(), dist.get_world_size()
        store = TCPStore(host, 0, n, True, timedelta(seconds=30), False) if me == 0 else None
        port = torch.tensor(store.port if store else 0)
        dist.all_reduce(port, op=dist.ReduceOp.MAX)
        if store is None:
            store = TCPStore(host, int(port), n, False, timedelta(seconds=30), False)
        return store

    return (open_store,)


@right("a socket of its own, told to all, in a store that waits for its clients")
def waits_for_clients():
    def open_store(host):
        me, n, port = dist.get_rank(), dist.get_world_size(), [None]
        if me == 0:
            listener = socket.create_server((host, 0))
            port = [listener.getsockname()[1]]
        dist.broadcast_object_list(port, src=0)
        if me == 0:
            return dist.TCPStore(host, port[0], n, True, master_listen_fd=listener.detach())
        return dist.TCPStore(host, port[0], n, False)

    return (open_store,)


@right("rank 0 has a client too, and keeps what serves")
def serves_and_connects():
    servers = []

    def open_store(host):
        port = torch.tensor(0)
        if dist.get_rank() == 0:
            servers.append(dist.TCPStore(host, 0, is_master=True, wait_for_workers=False))
            port += servers[-1].port
        dist.broadcast(port, 0)
        return dist.TCPStore(host, int(port))

    return (open_store,)


@right("through torchrun's store, by a name for each call")
def a_name_for_each_call():
    calls = itertools.count()

    def open_store(host):
        told, name = dist.distributed_c10d._get_default_store(), f"port {next(calls)}"
        if dist.get_rank():
            return dist.TCPStore(host, int(told.get(name)))
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        told.set(name, str(store.port))
        return store

    return (open_store,)


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


@right("free ports are looked for until a store opens on one")
def looks_again():
    def open_store(host):
        port, store = torch.zeros(1, dtype=torch.int64), None
        number = 20_000 + os.getpid() % 5_000
        while dist.get_rank() == 0 and store is None:
            number += 1
            try:
                with socket.socket() as probe:
                    probe.bind((host, number))
                store = dist.TCPStore(host, number, is_master=True, wait_for_workers=False)
            except (OSError, RuntimeError):
                continue
            port[0] = number
        dist.broadcast(port, src=0)
        return store or dist.TCPStore(host, port.item())

    return (open_store,)


SERVE = "        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)\n        port[0] = store.port\n"
TELL, RETURN = "    dist.broadcast(port, src=0)\n", "    return store"
CHOSEN = "is not free any more. Whoever chooses a port cannot know that"
wrong("a port of one's own", CHOSEN, {"TCPStore(host, 0, is": "TCPStore(host, 29511, is"})
wrong("by luck", CHOSEN, {"TCPStore(host, 0, is": "TCPStore(host, random.Random().randint(20_000, 30_000), is"})
wrong("looked for before", CHOSEN, {
    SERVE: "        with socket.socket() as probe:\n            probe.bind((host, 0))\n"
    "            port[0] = probe.getsockname()[1]\n"
    "        store = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)\n"
})  # fmt: skip
wrong("nobody tells", "a client goes to port 0, where nobody is", {TELL: ""})
wrong("a file", "what comes back", {RETURN: "    return dist.FileStore('/dev/shm/none', -1)"})
wrong("a prefix around it", "what comes back", {RETURN: "    return dist.PrefixStore('mine', store)"})
wrong("waits for its clients", "wait for each other", {
    "TCPStore(host, 0, is_master=True, wait_for_workers=False)": "TCPStore(host, 0, dist.get_world_size(), is_master=True)"
})  # fmt: skip
wrong("rank 0 lets its store go", "nobody holds it any more", {
    "    if dist.get_rank() > 0:\n": "    store = None\n    if True:\n"
})  # fmt: skip
