REJECTED_WITH = "a GPU that gets no rows gets no part either"


def scatter_batch(batch, devices):
    share = -(-len(batch) // len(devices))
    return [batch[i * share : (i + 1) * share].to(device) for i, device in enumerate(devices)]
