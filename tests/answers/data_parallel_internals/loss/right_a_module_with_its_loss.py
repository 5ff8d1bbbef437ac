import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import gather, parallel_apply, replicate, scatter


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, rows, answers):
        return F.cross_entropy(self.model(rows), answers)


def data_parallel_loss(model, batch, targets, devices):
    inputs = scatter((batch, targets), devices)
    replicas = replicate(WithLoss(model), devices[: len(inputs)])
    losses = gather([loss[None] for loss in parallel_apply(replicas, inputs)], devices[0])
    weights = torch.tensor([len(rows) / len(batch) for rows, _ in inputs], device=devices[0])
    return losses @ weights
