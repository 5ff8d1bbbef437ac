REJECTED_WITH = "a backward through the whole graph"


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    p, m = len(stages), micro_batches
    xs, ys = batch.tensor_split(m), targets.tensor_split(m)
    waiting, total = [], 0
    for k in range(m + p):
        if k < m:
            x = xs[k]
            for i, stage in enumerate(stages):
                x = stage(x.to(f"simgpu:{i}"))
            waiting.append(loss_fn(x, ys[k]) * len(ys[k]) / len(targets))
        if waiting and k >= p - 1:
            loss = waiting.pop(0)
            loss.backward()
            total = total + loss.detach()
    return total
