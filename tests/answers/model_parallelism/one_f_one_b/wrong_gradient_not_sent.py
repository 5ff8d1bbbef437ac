REJECTED_WITH = "have no gradients: a tensor was detached"


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    total = 0
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.detach().to(f"simgpu:{i}"))
        loss = loss_fn(x, y) * len(y) / len(targets)
        loss.backward()
        total = total + loss.detach()
    return total
