REJECTED_WITH = "All stages have the warm-up of the first"


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]
