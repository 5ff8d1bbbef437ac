REJECTED_WITH = "WORLD_SIZE of process 0 is still wrong"


def repair(environments):
    return [{**one, "RANK": str(i)} for i, one in enumerate(environments)]
