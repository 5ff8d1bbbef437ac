REJECTED_WITH = "a number goes to the host inside the step"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    total = 0.0
    for loss in losses:
        loss.backward()
        total += loss.item()
    return torch.tensor(total)
