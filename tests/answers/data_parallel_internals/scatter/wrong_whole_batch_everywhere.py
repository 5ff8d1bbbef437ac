REJECTED_WITH = "more than its own rows go to a GPU"


def scatter_batch(batch, devices):
    share = -(-len(batch) // len(devices))
    parts = [batch.to(device)[i * share : (i + 1) * share] for i, device in enumerate(devices)]
    return [part for part in parts if len(part)]
