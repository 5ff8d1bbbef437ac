REJECTED_WITH = "synchronize makes the host wait"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        torch.simgpu.synchronize()
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
