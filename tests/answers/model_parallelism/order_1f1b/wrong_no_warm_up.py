REJECTED_WITH = "One micro-batch after the other"


def schedule_1f1b(stage, p, m):
    return [f"{letter}{k}" for k in range(m) for letter in "FB"]
