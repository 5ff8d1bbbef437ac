REJECTED_WITH = "without their weights"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses, plain = [], []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        plain.append(loss_fn(x, y).detach())
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(plain)
