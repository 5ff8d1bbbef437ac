REJECTED_WITH = "the whole batch at once"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    x = batch
    for i, stage in enumerate(stages):
        x = stage(x.to(f"simgpu:{i}"))
    loss = loss_fn(x, targets)
    loss.backward()
    return loss.detach()
