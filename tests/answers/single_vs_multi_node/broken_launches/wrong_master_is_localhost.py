REJECTED_WITH = "MASTER_ADDR of process 0 was right before"


def repair(environments):
    return [
        {**one, "RANK": str(rank), "WORLD_SIZE": str(len(environments)), "MASTER_ADDR": "localhost"}
        for rank, one in enumerate(environments)
    ]
