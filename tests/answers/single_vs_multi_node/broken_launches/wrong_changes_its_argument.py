REJECTED_WITH = "changes its first argument"


def repair(environments):
    for rank, one in enumerate(environments):
        one["RANK"] = str(rank)
    return environments
