def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    loss = 0
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i in range(len(stages)):
            x = stages[i](x.to(f"simgpu:{i}"))
        loss = loss + loss_fn(x, y) * (len(y) / len(targets))
    loss.backward()
    return loss
