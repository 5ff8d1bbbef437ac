import sys

import torch

REJECTED_WITH = "returns one whole number"


def added_references(situation):
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a)
    after = sys.getrefcount(a)
    del kept
    return before, after
