REJECTED_WITH = "a part is still on the host"


def scatter_batch(batch, devices):
    return list(batch.chunk(len(devices)))
