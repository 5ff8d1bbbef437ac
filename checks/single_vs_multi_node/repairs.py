"""Exercise 4: ``repair(environments)``: a list of dicts, one for each process, comes back with the right values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules

Environment = dict[str, str]
MEANING = {
    "RANK": "every process has a rank of its own, counted from 0 through all nodes",
    "LOCAL_RANK": "local ranks are counted from 0 on each node",
    "WORLD_SIZE": "the world size is the number of all processes",
    "MASTER_ADDR": "all meet at one address, that of the node of rank 0",
    "MASTER_PORT": "all meet at one port, that of rank 0",
    "NODE_ADDR": "this one was right, and says where the process runs",
}
ADDRESSES = (
    "10.0.0.1",
    "10.0.0.2",
    "192.168.7.5",
    "gpu-17",
    "gpu-9",
    "127.0.0.1",
    "fd00::a",
    "node.cluster",
    "10.0.0.10",
)


def right_launch(counts: Sequence[int], addresses: Sequence[str], port: int) -> list[Environment]:
    """The environments that a right launch gives its processes, node by node."""
    places = [(address, local) for count, address in zip(counts, addresses, strict=True) for local in range(count)]
    return [
        {
            "NODE_ADDR": address,
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(len(places)),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(port),
        }
        for rank, (address, local) in enumerate(places)
    ]


def broken(right: list[Environment], mistake: str, rng: random.Random) -> list[Environment]:
    """The same launch with a mistake."""
    made = [dict(one) for one in right]
    for number, one in enumerate(made):
        if mistake == "ranks counted on each node":
            one["RANK"] = one["LOCAL_RANK"]
        elif mistake == "ranks counted from 1":
            one["RANK"] = str(number + 1)
        elif mistake == "the number of nodes as world size":
            one["WORLD_SIZE"] = str(len({other["NODE_ADDR"] for other in right}))
        elif mistake == "ranks counted from the last process":
            one["RANK"] = str(len(right) - 1 - number)
        elif mistake == "local ranks that go on counting":
            one["LOCAL_RANK"] = one["RANK"]
        elif mistake == "each node meets at its own address":
            one["MASTER_ADDR"] = one["NODE_ADDR"]
        elif mistake == "all meet at the last node":
            one["MASTER_ADDR"] = right[-1]["NODE_ADDR"]
        elif mistake == "all but rank 0 at another port" and number:
            one["MASTER_PORT"] = str(int(one["MASTER_PORT"]) + 1)
        elif mistake == "other ports" and number and rng.random() < 0.5:
            one["MASTER_PORT"] = str(int(one["MASTER_PORT"]) + rng.randint(1, 9))
        elif mistake == "anything" and rng.random() < 0.6:
            names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", *["MASTER_PORT"] * bool(number)]
            for name in rng.sample(names, rng.randint(1, 3)):
                one[name] = rng.choice(ADDRESSES) if name == "MASTER_ADDR" else str(rng.randint(0, 40))
    return made


MISTAKES = (
    "ranks counted on each node",
    "ranks counted from 1",
    "ranks counted from the last process",
    "the number of nodes as world size",
    "local ranks that go on counting",
    "each node meets at its own address",
    "all meet at the last node",
    "all but rank 0 at another port",
    "other ports",
    "no mistake",
    *["anything"] * 2,
)
TURNS = "the launch", "the launch at another port", "its first process alone", "the launch once more"


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for number, mistake in enumerate(MISTAKES):
        counts = [2, 2] if number == 0 else [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
        if mistake not in ("anything", "no mistake"):  # where it would show, and where nodes are not alike
            counts = [2, 2] if number == 0 else [3, *(rng.randint(2, 4) for _ in range(rng.randint(1, 3)))]
        if number == len(MISTAKES) - 1:
            counts = [rng.randint(11, 14), rng.randint(9, 12)]
        addresses, port = rng.sample(ADDRESSES, len(counts)), rng.randint(1024, 65_000)
        if number in (0, len(MISTAKES) - 1):  # one address is the beginning of the other, which comes first or last
            addresses = ["10.0.0.10", "10.0.0.1"][:: 1 if number == 0 else -1]
        right = right_launch(counts, addresses, port)
        before = broken(right, mistake, rng)
        elsewhere = [one | {"MASTER_PORT": str(int(one["MASTER_PORT"]) + 10)} for one in before]
        rights = [right, right_launch(counts, addresses, port + 10), right_launch([1], addresses[:1], port), right]
        alone = rights[2] if mistake == "no mistake" else before[:1]
        cases.append({"ranks": 1, "processes": " + ".join(map(str, counts)), "mistake": mistake, "right": rights,
                      "before": [before, elsewhere, alone, before], "seed": rng.getrandbits(30)})  # fmt: skip
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    """Each result is looked at after the next call, which leaves it alone; then whoever called uses it up."""
    facts["turns"], result = [], None
    for before in [*case["before"], []]:
        given = [dict(one) for one in before]
        after = watch.call("repair", environments=given) if given else None
        if result is not None:
            facts["turns"].append(_plain(*result))
            if facts["turns"][-1]["kind"] == "list of dicts":
                for one in result[1]:
                    one.clear()
                result[1].clear()
        result = given, after


def _plain(given: list[Environment], after: Any) -> Facts:
    if not isinstance(after, list):
        return {"kind": f"a {type(after).__name__}"}
    if strange := [one for one in after if not isinstance(one, dict)]:
        return {"kind": f"a list with a {type(strange[0]).__name__}"}
    texts = [{str(k)[:60]: v if isinstance(v, str) else [repr(v)[:60]] for k, v in one.items()} for one in after]
    new = not any(one is other for one in after for other in given) and after is not given
    return {"kind": "list of dicts", "after": texts, "new": new, "different": len({id(one) for one in after})}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    turns = zip(TURNS, case["right"], case["before"], world[0]["turns"], strict=False)
    for number, (turn, right, before, facts) in enumerate(turns):
        for one in _launch(right, before, facts):
            again = f"in call {number + 1}, for {turn}: " if number else ""
            yield replace(one, sentence=again + one.sentence, call=number)
            return


def _launch(right: list[Environment], before: list[Environment], facts: Facts) -> Iterator[Broken]:
    if facts["kind"] != "list of dicts":
        yield Broken("returns:", "repair returns a list of dicts, one for each process", facts["kind"])
        return
    after = facts["after"]
    if len(after) != len(right):
        yield Broken("value:number", "no process may be lost or added", len(after), len(right))
        return
    if facts["different"] < len(after):
        words = "the same dict stands for several processes: make a new one for each"
        yield Broken("value:shared", words, f"{facts['different']} dicts", len(after))
        return
    for process, (was, wanted, got) in enumerate(zip(before, right, after, strict=True)):
        if set(got) != set(wanted):
            names = ", ".join(sorted(set(wanted) ^ set(got)))
            yield Broken("value:names", f"process {process} must keep its variables; missing or added: {names}")
            return
        for variable, value in wanted.items():
            if isinstance(got[variable], list):
                words = f"environment variables are text, {variable} of process {process} is not: use str(…)"
                yield Broken("value:text", words, got[variable][0], repr(value))
                return
            if got[variable] != value:
                what = "was right before" if was[variable] == value else "is still wrong"
                words = f"{variable} of process {process} {what}; {MEANING[variable]}"
                yield Broken("value:wrong", words, repr(got[variable])[:60], repr(value))
                return
    if not facts["new"]:
        yield Broken("value:new", "repair returns new dicts in a new list; these are those that it was given")


CONTRACT = Contract(
    name="single_vs_multi_node.broken_launches",
    rules={"repair": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "state:environments*",
            "repair changes what it was given: whoever calls it may still need the broken ones. Work on copies",
        ),
        ("value:*", "{}"),
    ),
    figures=lambda played: {"launches repaired": len(played), "processes": sum(len(c["right"][0]) for c, _ in played)},
)
