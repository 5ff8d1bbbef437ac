REJECTED_WITH = "chunk may give fewer pieces than asked for"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
