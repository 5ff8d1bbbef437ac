"""Exercise 5 of the lab on one node and several: what is wrong with a launch. What is not here is in the official solution."""

from collections import defaultdict
from itertools import count, groupby

from known_answers import right, wrong

ADD = "found += [(rank, name) for name, value in should_be.items() if one[name] != value]"
right("pairs as lists", {"(rank, name) for": "[rank, name] for"})


@right("a repaired launch, node by node, and what differs from it: a set")
def repaired_by_node():
    def diagnose(environments):
        address, port = environments[0]["NODE_ADDR"], environments[0]["MASTER_PORT"]
        repaired = []
        for node, processes in groupby(environments, key=lambda one: one["NODE_ADDR"]):
            for local_rank, _ in enumerate(processes):
                repaired.append(
                    dict(NODE_ADDR=node, RANK=f"{len(repaired)}", LOCAL_RANK=f"{local_rank}",
                         WORLD_SIZE=f"{len(environments)}", MASTER_ADDR=address, MASTER_PORT=port)
                )  # fmt: skip
        pairs = enumerate(zip(environments, repaired, strict=True))
        return {(number, name) for number, (old, new) in pairs for name in new if old[name] != new[name]}

    return (diagnose,)


@right("counters, on copies, and a generator")
def counters():
    def diagnose(environments):
        made, nodes = [dict(one) for one in environments], defaultdict(count)
        for rank, one in enumerate(made):
            one["RANK"], one["LOCAL_RANK"] = str(rank), str(next(nodes[one["NODE_ADDR"]]))
            one.update(WORLD_SIZE=str(len(made)), MASTER_ADDR=made[0]["NODE_ADDR"], MASTER_PORT=made[0]["MASTER_PORT"])
            yield from ((rank, name) for name, value in environments[rank].items() if one[name] != value)

    return (diagnose,)


wrong("nothing is found", "process 2", {ADD: "pass"})
wrong("nothing comes back", "not a list of pairs", {"    return found": "    found"})
wrong("names alone", "not a list of pairs", {"(rank, name) for": "name for"})
wrong("the environments are repaired in place", "changes `environments`", {ADD: ADD + "\n        one |= should_be"})
wrong("ranks are looked up", "raised KeyError", {
    "host, before": 'by = {int(e["RANK"]): e for e in environments}\n    by[0]\n    host, before'
})  # fmt: skip
