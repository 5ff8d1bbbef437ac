import sys

import torch

REJECTED_WITH = "every situation seems to add nothing"


def added_references(situation):
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a.clone())
    after = sys.getrefcount(a)
    del kept
    return after - before
