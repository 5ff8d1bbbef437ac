from torch.nn.parallel import scatter


def scatter_batch(batch, devices):
    return scatter(batch, devices)
