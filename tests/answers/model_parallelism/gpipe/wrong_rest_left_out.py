REJECTED_WITH = "the samples at the end of the batch are left out"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses, size = [], len(batch) // micro_batches
    for k in range(micro_batches):
        x, y = (t[k * size : (k + 1) * size] for t in (batch, targets))
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
