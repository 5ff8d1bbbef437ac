REJECTED_WITH = "the world size is the number of all processes"


def repair(environments):
    nodes = len({one["NODE_ADDR"] for one in environments})
    first = environments[0]
    seen = {}
    repaired = []
    for rank, one in enumerate(environments):
        local = seen.get(one["NODE_ADDR"], 0)
        seen[one["NODE_ADDR"]] = local + 1
        repaired.append(
            {
                **one,
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(nodes),
                "MASTER_ADDR": first["NODE_ADDR"],
                "MASTER_PORT": first["MASTER_PORT"],
            }
        )
    return repaired
