REJECTED_WITH = "all meet at one address, that of the node of rank 0"


def repair(environments):
    local = {}
    repaired = []
    for rank, one in enumerate(environments):
        mine = local.setdefault(one["NODE_ADDR"], [])
        mine.append(rank)
        repaired.append(
            {
                **one,
                "RANK": str(rank),
                "LOCAL_RANK": str(len(mine) - 1),
                "WORLD_SIZE": str(len(environments)),
                "MASTER_ADDR": one["NODE_ADDR"],
            }
        )
    return repaired
