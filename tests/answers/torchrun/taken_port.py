"""Exercise 6 of the lab on torchrun: a store whose port nobody else can have."""

import itertools
import os
import random
import socket

import torch
import torch.distributed as dist
from known_answers import right, wrong


def open_store(host):
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        port[0] = store.port
    dist.broadcast(port, src=0)
    if dist.get_rank() > 0:
        store = dist.TCPStore(host, port.item())
    return store


SERVE = "        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)\n        port[0] = store.port\n"
TELL = "    dist.broadcast(port, src=0)\n"
CLIENT = "    if dist.get_rank() > 0:\n        store = dist.TCPStore(host, port.item())\n"
CHOSEN = "is not free any more. Whoever chooses a port cannot know that"
EQUAL = {
    "22: `dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)` without wait_for_workers": (
        "without a world_size it waits for nobody"
    ),
}


# --- right, and written differently


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


# --- wrong

wrong("as given", CHOSEN, {
    SERVE: "        pass\n", TELL + CLIENT: "    store = dist.TCPStore(host, 29500, is_master=dist.get_rank() == 0)\n"
})  # fmt: skip
wrong("the port of torchrun", CHOSEN, {
    SERVE: "        pass\n",
    TELL + CLIENT: "    number = int(os.environ['MASTER_PORT']) + 1\n"
    "    store = dist.TCPStore(host, number, dist.get_world_size(), is_master=dist.get_rank() == 0)\n"
})  # fmt: skip
wrong("by luck", CHOSEN, {
    "TCPStore(host, 0, is_master": "TCPStore(host, random.Random().randint(20_000, 30_000), is_master"
})  # fmt: skip
wrong("looked for before", CHOSEN, {
    SERVE: "        with socket.socket() as probe:\n            probe.bind((host, 0))\n"
    "            port[0] = probe.getsockname()[1]\n"
    "        store = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)\n"
})  # fmt: skip
wrong("a socket on a port of one's own choice", CHOSEN, {
    SERVE: "        listener = socket.create_server((host, 29511))\n        port[0] = 29511\n"
    "        store = dist.TCPStore(host, 29511, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())\n"
})  # fmt: skip
wrong("two ports are tried", CHOSEN, {
    SERVE: "        for number in (29500, 29501):\n            try:\n"
    "                store = dist.TCPStore(host, number, is_master=True, wait_for_workers=False)\n                break\n"
    "            except Exception:\n                if number == 29501:\n                    raise\n"
    "        port[0] = store.port\n"
})  # fmt: skip
wrong("all serve", "rank 0 serves, and all others are its clients", {
    CLIENT: "    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)\n"
})  # fmt: skip
wrong("nobody tells", "a client goes to port 0, where nobody is", {TELL: ""})
wrong("kept from the first job", "the two jobs share one store", {
    "def open_store(host):\n": "kept = []\n\n\ndef open_store(host):\n    if kept:\n        return kept[0]\n",
    "    return store": "    kept.append(store)\n    return store",
})  # fmt: skip
wrong("the store of torchrun", "returns a new TCPStore on every rank", {
    "    return store": "    return dist.distributed_c10d._get_default_store()"
})  # fmt: skip
wrong("a file", "returns a new TCPStore on every rank", {
    "    return store": "    return dist.FileStore('/dev/shm/none', -1)"
})  # fmt: skip
wrong("the port alone", "returns a new TCPStore on every rank", {"    return store": "    return store.port"})
wrong("a prefix around it", "returns a new TCPStore on every rank", {
    "    return store": "    return dist.PrefixStore('mine', store)"
})  # fmt: skip
wrong("waits for its clients", "wait for each other", {
    "TCPStore(host, 0, is_master=True, wait_for_workers=False)": "TCPStore(host, 0, dist.get_world_size(), is_master=True)"
})  # fmt: skip
wrong(
    "always this machine",
    "the store is at another address",
    {"def open_store(host):\n": "def open_store(host):\n    host = '127.0.0.1'\n"},
)
wrong("at torchrun's address", "the store is at another address", {
    "def open_store(host):\n": "def open_store(host):\n    host = os.environ.get('MASTER_ADDR', 'localhost')\n"
})  # fmt: skip
wrong("through torchrun's store, where the first job's port still is", "the two jobs share one store", {
    SERVE: SERVE + "        dist.distributed_c10d._get_default_store().set('port', str(int(port)))\n",
    TELL: "    port[0] = int(dist.distributed_c10d._get_default_store().get('port'))\n"
})  # fmt: skip
wrong("the environment is changed", "the environment variables", {
    "    return store": "    os.environ['MY_PORT'] = str(int(port))\n    return store"
})  # fmt: skip
wrong("the port in two bytes", "converted to type int8_t without overflow", {
    "port = torch.zeros(1, dtype=torch.int64)": "port = torch.zeros(1, dtype=torch.int8)"
})  # fmt: skip
wrong("rank 1 holds it", "rank 0 serves", {
    "if dist.get_rank() == 0:": "if dist.get_rank() == min(1, dist.get_world_size() - 1):", "src=0": "src=min(1, dist.get_world_size() - 1)",
    "if dist.get_rank() > 0:": "if dist.get_rank() != min(1, dist.get_world_size() - 1):"
})  # fmt: skip
wrong("rank 0 lets its store go", "it lives as long as somebody holds it", {
    "    if dist.get_rank() > 0:\n": "    store = None\n    if True:\n"
})  # fmt: skip
wrong(
    "the port is rounded",
    "and rank 0 has no store there",
    {"dtype=torch.int64": "dtype=torch.bfloat16", "port.item())": "int(port))"},
)
wrong("the first job's port again", CHOSEN, {
    "def open_store(host):\n": "first = []\n\n\ndef open_store(host):\n",
    "TCPStore(host, 0, is_master": "TCPStore(host, first[0] if first else 0, is_master",
    "        port[0] = store.port\n": "        port[0] = store.port\n        first.append(store.port)\n",
})  # fmt: skip
wrong("a group of its own", "leaves the process groups other than before", {
    TELL: "    dist.broadcast(port, 0, group=dist.new_group())\n"
})  # fmt: skip
wrong("a socket stays open beside the store", "beside the store still listens", {
    "def open_store(host):\n": "def open_store(host):\n    open_store.kept = socket.create_server((host, 0))\n"
})  # fmt: skip
