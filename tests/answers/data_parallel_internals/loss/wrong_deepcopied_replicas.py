import copy

from torch.nn import functional as F

REJECTED_WITH = "Is a replica cut off"


def split(batch, devices):
    return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]


def data_parallel_loss(model, batch, targets, devices):
    replicas = [model] + [copy.deepcopy(model).to(device) for device in devices[1:]]
    losses = []
    for replica, rows, answers in zip(replicas, split(batch, devices), split(targets, devices), strict=False):
        losses.append(F.cross_entropy(replica(rows), answers) * len(rows) / len(batch))
    return sum(loss.to(devices[0]) for loss in losses)
