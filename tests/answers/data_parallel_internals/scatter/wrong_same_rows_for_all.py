REJECTED_WITH = "rows are on more than one GPU"


def scatter_batch(batch, devices):
    return [batch.to(device) for device in devices]
