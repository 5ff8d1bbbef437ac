REJECTED_WITH = "must keep its variables"


def repair(environments):
    return [{"RANK": str(rank), "WORLD_SIZE": str(len(environments))} for rank, _ in enumerate(environments)]
