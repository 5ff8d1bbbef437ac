import torch

REJECTED_WITH = "the answer uses DistributedDataParallel: write it yourself"


def average_used(model):
    torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
