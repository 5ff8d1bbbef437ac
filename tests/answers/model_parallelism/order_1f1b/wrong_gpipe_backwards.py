REJECTED_WITH = "backwards from the last micro-batch"


def schedule_1f1b(stage, p, m):
    return [f"F{k}" for k in range(m)] + [f"B{m - 1 - k}" for k in range(m)]
