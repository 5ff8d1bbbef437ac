"""Exercise 4 of the lab on one node and several: the environments of a launch, repaired."""

# ruff: noqa: F401 (modules that changed answers use)
import collections
import copy
import os
from itertools import count, groupby

from known_answers import right, wrong


def repair(environments):
    host = environments[0]
    repaired, on_node = [], {}
    for rank, environment in enumerate(environments):
        node = environment["NODE_ADDR"]
        local_rank = on_node.get(node, 0)
        on_node[node] = local_rank + 1
        repaired.append(
            environment
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(len(environments)),
                "MASTER_ADDR": host["NODE_ADDR"],
                "MASTER_PORT": host["MASTER_PORT"],
            }
        )
    return repaired


RETURN = "    return repaired"
SIZE = "str(len(environments))"
COPY = "            environment\n            | {"


# --- right, and written differently

right("deep copies", {"    host = ": "    environments = copy.deepcopy(environments)\n    host = "})


@right("node by node")
def node_by_node():
    def repair(environments):
        address, port = environments[0]["NODE_ADDR"], environments[0]["MASTER_PORT"]
        repaired = []
        for node, processes in groupby(environments, key=lambda one: one["NODE_ADDR"]):
            for local_rank, _ in enumerate(processes):
                repaired.append(
                    dict(NODE_ADDR=node, RANK=f"{len(repaired)}", LOCAL_RANK=f"{local_rank}",
                         WORLD_SIZE=f"{len(environments)}", MASTER_ADDR=address, MASTER_PORT=port)
                )  # fmt: skip
        return repaired

    return (repair,)


@right("counters, in place on copies")
def counters():
    def repair(environments):
        made, nodes = [dict(one) for one in environments], collections.defaultdict(count)
        for rank, one in enumerate(made):
            one["RANK"], one["LOCAL_RANK"] = str(rank), str(next(nodes[one["NODE_ADDR"]]))
            one.update(WORLD_SIZE=str(len(made)), MASTER_ADDR=made[0]["NODE_ADDR"], MASTER_PORT=made[0]["MASTER_PORT"])
        return made

    return (repair,)


@right("only what is wrong")
def only_what_is_wrong():
    def repair(environments):
        addresses = [one["NODE_ADDR"] for one in environments]

        def value(number, name, old):
            wanted = {"RANK": number, "LOCAL_RANK": addresses[:number].count(addresses[number]),
                      "WORLD_SIZE": len(addresses), "MASTER_ADDR": addresses[0],
                      "MASTER_PORT": environments[0]["MASTER_PORT"]}  # fmt: skip
            return str(wanted.get(name, old))

        return [
            {name: value(number, name, old) for name, old in one.items()} for number, one in enumerate(environments)
        ]

    return (repair,)


# --- wrong

wrong("nothing is done", "is still wrong", {RETURN: "    return [dict(one) for one in environments]"})
wrong("the same list", "new dicts in a new list", {
    RETURN: "    return environments if repaired == environments else repaired"
})  # fmt: skip
wrong(
    "changes what it was given",
    "repair changes what it was given",
    {COPY: "            environment.update(RANK=str(rank)) or environment\n            | {"},
)
wrong("numbers", "environment variables are text", {'"RANK": str(rank)': '"RANK": rank'})
wrong("a number of processes", "environment variables are text", {SIZE: "len(environments)"})
wrong("ranks as they are", "RANK of process", {'                "RANK": str(rank),\n': ""})
wrong("counted from one", "RANK of process", {"enumerate(environments)": "enumerate(environments, 1)"})
wrong("local ranks go on", "local ranks are counted from 0", {'": str(local_rank)': '": str(rank)'})
wrong("nodes of equal size", "LOCAL_RANK of process", {
    "local_rank = on_node.get(node, 0)": 'local_rank = rank % (len(environments) // len({e["NODE_ADDR"] for e in environments}))'
})  # fmt: skip
wrong("two on each node", "LOCAL_RANK of process", {"local_rank = on_node.get(node, 0)": "local_rank = rank % 2"})
wrong("the number of nodes", "WORLD_SIZE of process", {SIZE: 'str(len({e["NODE_ADDR"] for e in environments}))'})
wrong(
    "the number on this node",
    "WORLD_SIZE of process",
    {SIZE: 'str([e["NODE_ADDR"] for e in environments].count(node))'},
)
wrong("the largest rank", "WORLD_SIZE of process", {SIZE: 'str(max(int(e["RANK"]) for e in environments) + 1)'})
wrong("each node meets itself", "MASTER_ADDR of process", {'"MASTER_ADDR": host["NODE_ADDR"]': '"MASTER_ADDR": node'})
wrong("localhost", "MASTER_ADDR of process", {'"MASTER_ADDR": host["NODE_ADDR"]': '"MASTER_ADDR": "localhost"'})
wrong(
    "what process 0 says",
    "MASTER_ADDR of process",
    {'"MASTER_ADDR": host["NODE_ADDR"]': '"MASTER_ADDR": host["MASTER_ADDR"]'},
)
wrong(
    "the smallest address",
    "MASTER_ADDR of process",
    {'"MASTER_ADDR": host["NODE_ADDR"]': '"MASTER_ADDR": min(e["NODE_ADDR"] for e in environments)'},
)
wrong("the port as it is", "MASTER_PORT of process", {'                "MASTER_PORT": host["MASTER_PORT"],\n': ""})
wrong("the usual port", "MASTER_PORT of process", {'host["MASTER_PORT"]': '"29500"'})
wrong("most go there", "MASTER_PORT of process", {
    'host["MASTER_PORT"]': 'max((e["MASTER_PORT"] for e in environments[::-1]), key=[e["MASTER_PORT"] for e in environments].count)'
})  # fmt: skip
wrong("only the changes", "must keep its variables", {COPY: "            {"})
wrong("one variable more", "must keep its variables", {'"RANK": str(rank)': '"GROUP_RANK": "0", "RANK": str(rank)'})
wrong("a process is lost", "no process may be lost", {RETURN: RETURN + "[:4]"})
wrong("a tuple", "returns a list of dicts", {RETURN: "    return tuple(repaired)"})
wrong("pairs", "returns a list of dicts", {RETURN: "    return [list(one.items()) for one in repaired]"})
wrong("nothing comes back", "returns a list of dicts", {RETURN: "    repaired"})
wrong(
    "sorted by address",
    "of process",
    {"    host = ": '    environments = sorted(environments, key=lambda e: e["NODE_ADDR"])\n    host = '},
)
wrong("its own environment", "the environment variables", {RETURN: "    os.environ.update(repaired[0])\n" + RETURN})
wrong(
    "reads wrong numbers",
    "raised",
    {
        "    host = ": '    by_rank = {int(e["RANK"]): e for e in environments}\n    host = by_rank[0]\n    by_rank[len(environments) - 1]\n    host = '
    },
)


# --- wrong: what is remembered, and large nodes

KNOWN = "    seen = repair.__dict__.setdefault('seen', {})\n"
wrong("known by the addresses", "for the launch at another port", {
    RETURN: KNOWN + '    key = tuple(e["NODE_ADDR"] for e in environments)\n'
    "    return [dict(e) for e in seen.setdefault(key, [dict(e) for e in repaired])]"
})  # fmt: skip
wrong("the same list for the same launch", "for the launch once more", {
    RETURN: KNOWN + "    return seen.setdefault(str(environments), repaired)"
})  # fmt: skip
wrong("one digit", "LOCAL_RANK of process", {'": str(local_rank)': '": str(local_rank)[-1]'})
wrong("at most sixteen processes", "WORLD_SIZE of process", {SIZE: "str(min(16, len(environments)))"})
wrong("who says that it is rank 0", "of process", {
    "    host = environments[0]\n": "    host = next((e for e in environments if e['RANK'] == '0'), environments[0])\n"
})  # fmt: skip
wrong("one dict for all", "the same dict stands for several processes", {
    RETURN: "    one = {}\n    for each in repaired:\n        one.update(each)\n    return [one] * len(repaired)"
})  # fmt: skip
wrong("an address in a text of addresses", "LOCAL_RANK of process", {
    "local_rank = on_node.get(node, 0)": 'local_rank = ",".join(e["NODE_ADDR"] for e in environments[:rank]).count(node)'
})  # fmt: skip
wrong("a single process with nothing wrong is handed back", "new dicts in a new list", {
    RETURN: "    return environments if repaired == environments and len(repaired) == 1 else repaired"
})  # fmt: skip
