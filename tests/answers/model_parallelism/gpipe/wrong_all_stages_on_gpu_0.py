REJECTED_WITH = "stage 1 is not on its GPU"


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    targets = targets.to("simgpu:0")
    stages = [stage.to("simgpu:0") for stage in stages]
    total = 0
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for stage in stages:
            x = stage(x)
        loss = loss_fn(x, y) * len(y) / len(targets)
        loss.backward()
        total = total + loss.detach()
    return total
