import sys

import torch

REJECTED_WITH = "count once before, and once after"


def added_references(situation):
    a = torch.zeros(3)
    kept = situation(a)
    before = sys.getrefcount(a)
    after = sys.getrefcount(kept if kept is a else a)
    return after - before
