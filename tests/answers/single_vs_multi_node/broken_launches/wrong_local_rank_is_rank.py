REJECTED_WITH = "local ranks are counted from 0 on each node"


def repair(environments):
    first = environments[0]
    return [
        {
            **one,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(environments)),
            "MASTER_ADDR": first["NODE_ADDR"],
            "MASTER_PORT": first["MASTER_PORT"],
        }
        for rank, one in enumerate(environments)
    ]
