REJECTED_WITH = "rows are lost"


def scatter_batch(batch, devices):
    share = max(1, len(batch) // len(devices))
    return [batch[i * share : (i + 1) * share].to(d) for i, d in enumerate(devices) if i * share < len(batch)]
