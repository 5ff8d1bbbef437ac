REJECTED_WITH = "is a list of texts"


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [("F", k) for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [("F", warm_up + k), ("B", k)]
    return order + [("B", k) for k in range(m - warm_up, m)]
