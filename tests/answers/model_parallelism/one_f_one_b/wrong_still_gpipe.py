REJECTED_WITH = "all forwards first is GPipe"


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
