import sys

import torch

REJECTED_WITH = "count before and after"


def added_references(situation):
    a = torch.zeros(3)
    kept = situation(a)
    count = sys.getrefcount(a)
    del kept
    return count
