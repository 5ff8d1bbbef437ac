REJECTED_WITH = "are no neighbours"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x.to("simgpu:0"), y.to("simgpu:0")) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
