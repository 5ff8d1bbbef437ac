import sys

import torch

REJECTED_WITH = "the situation runs before you count"


def added_references(situation):
    a = torch.zeros(3)
    situation(a)  # to warm up
    before = sys.getrefcount(a)
    kept = situation(a)
    after = sys.getrefcount(a)
    del kept
    return after - before
