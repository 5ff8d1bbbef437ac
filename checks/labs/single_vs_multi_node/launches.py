"""Check of ``diagnose``: which variables of which processes are wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, leaves, refuse
from checks.engine.plain import shorten

Environment = dict[str, str]
LOCAL, SIZE = 'before.count(one["NODE_ADDR"])', '"WORLD_SIZE": str(len(environments))'
RANK, NODE, PORT = '"RANK": str(rank)', '"MASTER_ADDR": host["NODE_ADDR"]', '"MASTER_PORT": host["MASTER_PORT"]'
NODES = 'len({e["NODE_ADDR"] for e in environments})'
OFFICIAL = Reference("single_vs_multi_node", "diagnose", {
    "ranks are counted from 0 through all nodes, yours from 1": {RANK: '"RANK": str(rank + 1)'},
    "ranks are counted from 0 through all nodes, yours on each node": {RANK: f'"RANK": str({LOCAL})'},
    "local ranks are counted from 0 on each node, yours through all nodes": {LOCAL: "rank"},
    "local ranks are counted from 0 on each node, and nodes need not have as many processes as others":
        {LOCAL: f"rank % (len(environments) // {NODES})"},
    "an address may be a part of another one: compare whole addresses":
        {LOCAL: '",".join(before).count(one["NODE_ADDR"])'},
    "the world size is the number of all processes, yours that of the nodes": {SIZE: f'"WORLD_SIZE": str({NODES})'},
    "the world size is the number of all processes, yours that of one node":
        {SIZE: '"WORLD_SIZE": str([e["NODE_ADDR"] for e in environments].count(one["NODE_ADDR"]))'},
    "all meet at the address of the node of rank 0, not each at its own": {NODE: '"MASTER_ADDR": one["NODE_ADDR"]'},
    "all meet at the address of the node of rank 0, and none of the MASTER_ADDR given can be trusted":
        {NODE: '"MASTER_ADDR": host["MASTER_ADDR"]'},
    "all meet at the address of the node of rank 0, not at localhost": {NODE: '"MASTER_ADDR": "localhost"'},
    "all meet at one port, that of the first process": {PORT: '"MASTER_PORT": one["MASTER_PORT"]'},
    "rank 0 is the first process, whatever its RANK says":
        {"environments[0]": 'next((e for e in environments if e["RANK"] == "0"), environments[0])'},
    "environment variables are text: compare the rank with str(…)": {RANK: '"RANK": rank'},
    "processes are counted from 0": {"(rank, name) for": "(rank + 1, name) for"},
})  # fmt: skip
ADDRESSES = "10.0.0.1", "10.0.0.2", "10.0.0.10", "192.168.7.5", "gpu-17", "gpu-9", "fd00::a"
KINDS = ("a rank twice", "ranks from 1", "the nodes as world size", "local ranks that go on",
         "all others at another port", "nothing", "anything")  # fmt: skip


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    counts = [2, 2] if number == 0 else [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    counts = [12, 9] if number == 2 else counts
    kind = KINDS[number % len(KINDS)]
    addresses, port = rng.sample(ADDRESSES, len(counts)), rng.randint(1024, 65_000)
    places = [(address, local) for count, address in zip(counts, addresses, strict=True) for local in range(count)]
    right = [{"NODE_ADDR": address, "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(len(places)),
              "MASTER_ADDR": addresses[0], "MASTER_PORT": str(port)}
             for rank, (address, local) in enumerate(places)]  # fmt: skip
    broken = [one | _fault(kind, one, str(len(counts)), rng) for one in right]
    broken[0]["MASTER_PORT"] = str(port)
    return {"processes on the nodes": counts, "the launch has": kind, "environments": broken}


def _fault(kind: str, one: Environment, nodes: str, rng: random.Random) -> Environment:
    """What is wrong with a process in a launch that has a fault of this kind."""
    always: dict[str, Environment] = {
        "a rank twice": {"RANK": "1"} if one["RANK"] == "2" else {},
        "ranks from 1": {"RANK": str(int(one["RANK"]) + 1)},
        "the nodes as world size": {"WORLD_SIZE": nodes},
        "local ranks that go on": {"LOCAL_RANK": one["RANK"]},
        "all others at another port": {"MASTER_PORT": str(int(one["MASTER_PORT"]) + 10)},
    }
    if kind != "anything":
        return always.get(kind, {})
    changed = rng.sample([name for name in one if name != "NODE_ADDR"], rng.choice((0, 0, 1, 2, 3)))
    return {name: rng.choice(ADDRESSES) if name == "MASTER_ADDR" else str(rng.randint(0, 40)) for name in changed}


@exercise(OFFICIAL, draw, title="What is wrong with this launch", difficulty=3, minutes=25, timeout=30)
def broken_launches(case: dict[str, Any], diagnose: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``diagnose(environments)``: which variables of which processes are wrong."""
    with leaves(environments=case["environments"]):
        found = diagnose(case["environments"])
    try:
        pairs = {(int(process), str(variable)) for process, variable in found}
    except (TypeError, ValueError):
        refuse(True, "the result is not a list of pairs: (process, variable)", measured=shorten(found))
    return {f"process {number}": sorted(name for one, name in pairs if one == number)
            for number in range(max([len(case["environments"]) - 1, *(one for one, _ in pairs)]) + 1)}  # fmt: skip
