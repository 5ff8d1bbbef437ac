REJECTED_WITH = "a node with 3 processes and one with 1: LOCAL_RANK of process 2"


def repair(environments):
    nodes = len({one["NODE_ADDR"] for one in environments})
    per_node = len(environments) // nodes
    first = environments[0]
    return [
        {
            **one,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % per_node),
            "WORLD_SIZE": str(len(environments)),
            "MASTER_ADDR": first["NODE_ADDR"],
            "MASTER_PORT": first["MASTER_PORT"],
        }
        for rank, one in enumerate(environments)
    ]
