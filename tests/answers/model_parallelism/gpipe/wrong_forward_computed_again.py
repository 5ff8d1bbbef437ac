from torch.utils.checkpoint import checkpoint

REJECTED_WITH = "is something computed twice?"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = checkpoint(stage, x.to(f"simgpu:{i}"), use_reentrant=False)
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
