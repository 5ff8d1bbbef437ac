import gc
import sys

import torch

REJECTED_WITH = "the cycle collector runs before you count"


def added_references(situation):
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a)
    gc.collect()
    after = sys.getrefcount(a)
    del kept
    return after - before
