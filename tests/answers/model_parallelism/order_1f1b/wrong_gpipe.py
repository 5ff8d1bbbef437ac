REJECTED_WITH = "That is GPipe: all forwards first"


def schedule_1f1b(stage, p, m):
    return [f"F{k}" for k in range(m)] + [f"B{k}" for k in range(m)]
