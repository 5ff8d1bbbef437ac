import torch

REJECTED_WITH = "is half a file, and the old one is gone"


def save(state, path):
    torch.save(state, path)
