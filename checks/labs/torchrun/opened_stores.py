"""Check of ``open_store``: one store for all ranks, on a port that the system has chosen, twice on one node."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from checks.engine import Reference, refuse
from checks.engine.plain import kind_of

CLIENT = "        store = dist.TCPStore(host, port.item())\n"
OFFICIAL = Reference("torchrun", "open_store", {
    "the store is on this machine's own address, and not at the host that open_store is given":
        {"dist.TCPStore(host, ": "dist.TCPStore('127.0.0.1', "},
    "the two programs share one store: each would read the other's keys. Open a new one in each call":
        {"def open_store(host):\n": "KEPT = []\n\n\ndef open_store(host):\n    if KEPT:\n        return KEPT[0]\n",
         "    return store": "    KEPT.append(store)\n    return store"},
    "every rank opens a store of its own: rank 0 serves, and all others are its clients":
        {CLIENT: CLIENT.replace("port.item()", "0, is_master=True, wait_for_workers=False")},
    "the store is torchrun's own, and not a new one":
        {"    return store": "    return dist.distributed_c10d._get_default_store()"},
    "only the port comes back, not the store": {"    return store": "    return store.port"},
})  # fmt: skip
CASES = [{"host": "127.0.0.1", "late": 0}, {"host": "127.0.0.7", "late": 0.2}]
SOMEBODY_ELSE = 3  # so many ports that a program names are taken by then
CHOSEN = ("port {} is not free any more. Whoever chooses a port cannot know that. Give port 0: the system chooses a "
          "free one, and store.port tells which")  # fmt: skip


def play(case: dict[str, Any], open_store: Callable[..., Any]) -> dict[str, Any]:
    rank, ranks, hosts, made, held, dropped = dist.get_rank(), dist.get_world_size(), set(), [], [], False
    for _ in range(2):
        time.sleep(case["late"] * (rank == ranks - 1))  # nobody may count on who comes first
        with _noting(hosts) as served:
            made.append(open_store(case["host"]))
            held.append(served)
        # A store lives as long as somebody holds it. Here hold it: the list, and the call that counts.
        dropped |= any(sys.getrefcount(served[number]) <= 2 for number in range(len(served)))
    seen = {
        "the address": sorted(hosts),
        "the stores that this rank serves": sum(map(len, held)),
        "what comes back": [_kind(one) for one in made],
    }
    usable: list[Any] = [None] * ranks
    dist.all_gather_object(usable, seen["what comes back"] == ["a TCPStore"] * 2)
    if not all(usable):
        return seen | dict.fromkeys(("the ranks of each program that find each other", "the programs' stores"), "")
    refuse(dropped, "the store that was opened ends when open_store returns, for nobody holds it any more: return it")
    for number, store in enumerate(made):
        store.set(f"{number} {rank}", "")
        store.check([f"{number} {rank}"])  # it answers, so the server has read what was set
    dist.barrier()
    there = [[one for one in range(ranks) if store.check([f"{n} {one}"])] for n, store in enumerate(made)]
    apart = not any(store.check([f"{1 - number} {rank}"]) for number, store in enumerate(made))
    dist.barrier()
    told = "two of them" if apart else "one for both"
    return seen | {"the ranks of each program that find each other": there, "the programs' stores": told}


def _kind(thing: Any) -> str:
    default = dist.distributed_c10d._get_default_store()
    if isinstance(thing, dist.TCPStore) and thing is not default:
        return "a TCPStore"
    return "torchrun's own store" if thing is default else kind_of(thing)


@contextlib.contextmanager
def _noting(hosts: set[str]) -> Iterator[list[Any]]:
    """Every TCPStore that is made, by whatever name. Ports that a program names have just been taken by another one."""
    real, left, served = dist.TCPStore.__init__, SOMEBODY_ELSE, []

    def noted(store: Any, host_name: str, port: int = 0, world_size: Any = None, is_master: bool = False,
              *given: Any, **named: Any) -> None:  # fmt: skip
        nonlocal left
        hosts.add(str(host_name))
        if is_master and int(port) and named.get("master_listen_fd") is None and left > 0:
            left -= 1
            raise dist.DistNetworkError(f"EADDRINUSE: {CHOSEN.format(int(port))}")
        words = "a client goes to port 0, where nobody is: rank 0 must tell the others its store.port"
        refuse(not is_master and not int(port), words)
        real(store, host_name, int(port), world_size, is_master, *given, **named)
        if is_master:
            served.append(store)  # so that clients reach it, whatever the answer does with it

    dist.TCPStore.__init__ = noted
    try:
        yield served
    finally:
        dist.TCPStore.__init__ = real
