REJECTED_WITH = "environment variables are text"


def repair(environments):
    return [{**one, "RANK": rank, "WORLD_SIZE": len(environments)} for rank, one in enumerate(environments)]
