REJECTED_WITH = "has micro-batches 0 to 1 only"


def schedule_1f1b(stage, p, m):
    warm_up = p - 1 - stage
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]
