import sys

import torch

REJECTED_WITH = "the situation runs twice"


def added_references(situation):
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a), situation(a)
    after = sys.getrefcount(a)
    del kept
    return after - before
