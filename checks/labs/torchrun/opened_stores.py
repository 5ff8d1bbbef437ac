"""Check of ``open_store``: one store for all ranks, on a port that the system has chosen, twice on one node."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of

CLIENT = "        store = dist.TCPStore(host, port.item())\n"
OFFICIAL = Reference("torchrun", "open_store", {
    "the store is on this machine's own address, and not at the host that open_store is given":
        {"dist.TCPStore(host, ": "dist.TCPStore('127.0.0.1', "},
    "every rank opens a store of its own: rank 0 serves, and all others are its clients":
        {CLIENT: CLIENT.replace("port.item()", "0, is_master=True, wait_for_workers=False")},
})  # fmt: skip
CASES = [{"host": "127.0.0.1", "late": 0}, {"host": "127.0.0.7", "late": 0.2}]


@exercise(OFFICIAL, CASES, title="A store of one's own", difficulty=2, minutes=15, ranks=(3, 1))
def taken_port(case: dict[str, Any], open_store: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``open_store(host)``: two stores on the same node at the same time."""
    rank, ranks, make = dist.get_rank(), dist.get_world_size(), dist.TCPStore.__init__
    taken, hosts, served, stores = [], [], [], []  # what is served is held: clients reach it, whatever the answer does

    def noted(store: Any, host_name: str, port: Any = 0, world_size: Any = None, is_master: bool = False,
              *given: Any, **named: Any) -> None:  # fmt: skip
        hosts.append(str(host_name))
        chosen = is_master and int(port) and named.get("master_listen_fd") is None
        if chosen and len(taken) < 3:  # somebody else was quicker
            taken.append(int(port))
            fault = f"port {int(port)} is not free any more. Whoever chooses a port cannot know that. Give port 0"
            raise dist.DistNetworkError(f"EADDRINUSE: {fault}: the system chooses a free one; store.port tells which")
        fault = "a client goes to port 0, where nobody is: rank 0 must tell the others its store.port"
        refuse(not is_master and not int(port), fault)
        make(store, host_name, int(port), world_size, is_master, *given, **named)
        served.extend([store] * is_master)

    with mock.patch.object(dist.TCPStore, "__init__", noted):
        for _ in range(2):
            time.sleep(case["late"] * (rank == ranks - 1))  # nobody may count on who comes first
            stores.append(open_store(case["host"]))
    strangers = ", ".join(kind_of(store) for store in stores if not isinstance(store, dist.TCPStore))
    refuse(strangers, "open_store does not return a TCPStore of its own on every rank", measured=strangers)
    # A store lives as long as somebody holds it. Here hold it: the list, and the call that counts.
    fault = "the store that was opened ends when open_store returns, for nobody holds it any more: return it"
    refuse(any(sys.getrefcount(served[number]) <= 2 for number in range(len(served))), fault)
    keys = [f"program {number} of rank {holder}" for number in range(2) for holder in range(ranks)]
    for number, store in enumerate(stores):
        store.set(f"program {number} of rank {rank}", "")
        store.check(keys)  # it answers, so the server has read what was set
    dist.barrier()
    there = [[key for key in keys if store.check([key])] for store in stores]
    dist.barrier()
    return {"the address": sorted({*hosts}), "how many stores a rank serves": len(served), "the keys in each": there}
