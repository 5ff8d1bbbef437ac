REJECTED_WITH = "forward of all micro-batches first"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    total = 0
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        loss = loss_fn(x, y) * len(y) / len(targets)
        loss.backward()
        total = total + loss.detach()
    return total
