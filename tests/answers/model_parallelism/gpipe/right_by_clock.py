import torch


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    p, m = len(stages), micro_batches
    sizes = [len(batch) // m + (k < len(batch) % m) for k in range(m)]
    xs, ys = list(batch.split(sizes)), targets.split(sizes)
    for clock in range(m + p - 1):
        for i in reversed(range(p)):  # all stages that have something to do at this tick
            k = clock - i
            if 0 <= k < m:
                xs[k] = stages[i](xs[k])
                if i < p - 1:
                    xs[k] = xs[k].to(f"simgpu:{i + 1}")
    total = torch.zeros((), device=targets.device)
    for x, y, size in zip(xs, ys, sizes, strict=True):
        loss = loss_fn(x, y) * size / len(batch)
        loss.backward()
        total += loss.detach()
    return total
