REJECTED_WITH = "launch it as soon as the stage has its result"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    xs, ys = batch.tensor_split(micro_batches), targets.tensor_split(micro_batches)
    for i, stage in enumerate(stages):
        xs = [stage(x) for x in [x.to(f"simgpu:{i}") for x in xs]]
    losses = [loss_fn(x, y) * len(y) / len(targets) for x, y in zip(xs, ys, strict=True)]
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)
