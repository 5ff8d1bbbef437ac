from torch.nn import functional as F

REJECTED_WITH = "not every GPU works in the forward"


def data_parallel_loss(model, batch, targets, devices):
    return F.cross_entropy(model(batch), targets)
