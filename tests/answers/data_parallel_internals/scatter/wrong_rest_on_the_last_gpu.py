REJECTED_WITH = "the rows are not shared out evenly"


def scatter_batch(batch, devices):
    p, n = len(devices), len(batch)
    cuts = [i * (n // p) for i in range(p)] + [n]
    parts = [batch[a:b].to(device) for a, b, device in zip(cuts, cuts[1:], devices, strict=False)]
    return [part for part in parts if len(part)]
