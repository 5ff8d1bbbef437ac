"""Exercise 6: ``open_store(host)``: one store for all ranks, on a port that is free for certain."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.contracts.events import not_the_answer
from checks.torchrun import talk
from checks.verdicts import Wrong

JOBS, SOMEBODY_ELSE = 2, 3  # and so many ports that a program names are taken by then
USES = ("set", "get", "add", "wait", "check", "compare_set", "append", "multi_set", "multi_get", "delete_key")
TICK, WAIT = 0.05, 60  # until a client gives up
_NAMES = ("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant",
          "master_listen_fd", "use_libuv")  # fmt: skip


def draw(rng: random.Random) -> list[Case]:
    return [
        {"ranks": ranks, "host": f"127.0.0.{rng.choice((1, rng.randint(2, 250)))}", "seed": rng.getrandbits(30)}
        for ranks in talk.worlds(rng)
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    me, world_size = dist.get_rank(), dist.get_world_size()
    dice = random.Random(case["seed"] + me)
    opened: list[Facts] = []
    made = []
    facts["opened"], facts["kinds"], facts["dropped"], facts["sockets"] = opened, [], False, 0
    for job in range(JOBS):
        time.sleep(dice.choice((0, 0.2)) if me else 0.1 * job)  # nobody may count on who comes first
        before = _listening()
        with _noting(opened, job) as served:
            made.append(watch.call("open_store", host=case["host"]))
        # A store lives as long as somebody holds it. Here hold it: the list, and the call that counts.
        facts["dropped"] |= any(sys.getrefcount(served[n]) <= 2 for n in range(len(served)))
        facts["sockets"] = max(facts["sockets"], _listening() - before - len(served))
        facts["kinds"].append("TCPStore" if isinstance(made[-1], dist.TCPStore) else type(made[-1]).__name__)
    usable = torch.tensor(facts["kinds"] == ["TCPStore"] * JOBS, dtype=torch.int32)
    dist.all_reduce(usable, dist.ReduceOp.MIN)
    if not usable:
        return
    for number, store in enumerate(made):
        store.set(f"{number} {me}", str(me))
        store.get(f"{number} {me}")  # it answers, so the server has read what was set
    dist.barrier()
    facts["ports"] = [store.port for store in made]
    facts["apart"] = [not store.check([f"{1 - number} {me}"]) for number, store in enumerate(made)]
    facts["together"] = [all(store.check([f"{n} {r}"]) for r in range(world_size)) for n, store in enumerate(made)]
    dist.barrier()


def _listening() -> int:
    """How many sockets of this process wait for clients."""
    from checks.contracts.surroundings import sockets

    return sum(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for one in sockets())


@contextlib.contextmanager
def _noting(opened: list[Facts], job: int) -> Iterator[list[Any]]:
    """Every TCPStore that is made, by whatever name. Ports that a program names have just been taken by another one."""
    import torch.distributed as dist

    real, words = dist.TCPStore.__init__, dist.PrefixStore("check", dist.distributed_c10d._get_default_store())
    taken, served = _Taken(words, job), []

    def noted(store: Any, *given: Any, **named: Any) -> None:
        told = dict(zip(_NAMES, given, strict=False)) | named
        port, serves = int(told.get("port") or 0), bool(told.get("is_master"))
        opened.append({"host": str(told.get("host_name")), "serves": serves})
        if serves and port and told.get("master_listen_fd") is None and taken.is_taken(port, store=True):
            raise dist.DistNetworkError(f"EADDRINUSE: {_CHOSEN.format(port)}")
        if not serves:
            taken.await_server(port)
        elif told.get("master_listen_fd") is not None:
            taken.serve(port)  # its socket is open already; the store may wait for its clients
        real(store, *given, **named)
        if serves:
            served.append(store)  # so that clients reach it, whatever the answer does with it
            taken.serve(store.port)

    if not _Taken.now:
        sys.addaudithook(_audit)
    _Taken.now[:] = [taken]
    dist.TCPStore.__init__ = noted
    try:
        yield served
    finally:
        dist.TCPStore.__init__ = real
        _Taken.now[:] = [None]


_CHOSEN = (
    "port {} is not free any more. Whoever chooses a port cannot know that. Give port 0: the system chooses a free "
    "one, and store.port tells which"
)


class _Taken:
    """Who has which port, in one job. ``words``: a store in which the ranks' checks tell each other."""

    now: ClassVar[list[_Taken | None]] = []

    def __init__(self, words: Any, job: int) -> None:
        self._words, self._left, self._refused = words, SOMEBODY_ELSE, f"refused in job {job}"
        self._probed: set[int] | None = set()

    def is_taken(self, port: int, store: bool = False) -> bool:
        """The first ones are; and once one that the program has just found free, when it opens its store there."""
        self._left -= 1
        found_free = bool(store and self._probed and port in self._probed)
        if taken := self._left >= 0 or found_free:
            with not_the_answer():
                self._words.set(self._refused, f"{port}")
        if found_free:
            self._probed = None
        elif not taken and not store and self._probed is not None:
            self._probed.add(port)
        return taken

    def serve(self, port: int) -> None:
        with not_the_answer():
            self._words.set(f"serves {port}", "")

    def await_server(self, port: int) -> None:
        """A client would wait for ever, or reach somebody else's store."""
        if port == 0:
            raise Wrong("a client goes to port 0, where nobody is: rank 0 must tell the others its store.port")
        with not_the_answer():
            for _ in range(WAIT):
                if self._words.check([f"serves {port}"]):
                    return
                time.sleep(TICK)
                if self._words.check([self._refused]):
                    break
            raise Wrong(f"a client goes to port {port}, and rank 0 has no store there: {_CHOSEN.format(port)}")


def _audit(event: str, details: tuple[Any, ...]) -> None:
    if event == "socket.bind" and _Taken.now[0] is not None:
        address = details[1]
        if isinstance(address, tuple) and len(address) > 1 and address[1] and _Taken.now[0].is_taken(address[1]):
            raise OSError(98, f"EADDRINUSE: {_CHOSEN.format(address[1])}")


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for rank, facts in enumerate(world):
        if facts["dropped"]:
            words = "rank 0's store ends when open_store returns, for it lives as long as somebody holds it"
            yield Broken("value:dropped", f"{words}: return it", rank=rank)
        for kind in facts["kinds"]:
            if kind != "TCPStore":
                yield Broken("value:kind", "open_store returns a new TCPStore on every rank", f"a {kind}", rank=rank)
        for one in facts["opened"]:
            if one["serves"] and rank:
                words = (
                    "a rank that is not 0 opens a store too (is_master): rank 0 serves, and all others are its clients"
                )
                yield Broken("value:serves", words, rank=rank)
            if one["host"] != case["host"]:
                words = "the store is at another address than the one that open_store is given"
                yield Broken("value:host", words, one["host"], case["host"], rank)
        if facts["sockets"] > 0:
            words = "a socket beside the store still listens when open_store returns, so its port stays taken: close it"
            yield Broken("around:sockets", words, rank=rank)
        if "together" not in facts:
            continue
        if not all(facts["apart"]):
            words = "the two jobs share one store: each would read the other's keys. Open a new one in each call"
            yield Broken("value:apart", words, f"ports {facts['ports']}", "two", rank)
        elif not all(facts["together"]):
            words = "a rank does not find in its store what the other ranks have written there"
            yield Broken("value:together", words, rank=rank)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {"jobs on one node": JOBS, "ranks of each": talk.world_sizes(played), "ports chosen by": "the system"}


def _wire(*_: Any) -> dict[str, Any]:
    return talk.any_collective(50, 100_000, "barrier", "send", "recv", *(f"store.{use}" for use in USES))


CONTRACT = Contract(
    name="torchrun.taken_port",
    rules={"open_store": Rules(wire=_wire, same_calls=False, allows=("starts:a connection",))},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("value:serves", "{}"),
        ("value:kind", "{}"),
        ("value:dropped", "{}"),
        ("value:apart", "{}"),
        ("value:*", "{}"),
    ),
    figures=figures,
)
