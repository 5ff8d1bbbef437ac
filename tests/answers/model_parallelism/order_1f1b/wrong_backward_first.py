REJECTED_WITH = "nobody can go on"


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"B{k}", f"F{warm_up + k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]
