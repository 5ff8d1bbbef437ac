import sys

import torch

REJECTED_WITH = "count the same tensor, in the same way"


def added_references(situation):
    a = torch.zeros(3)
    kept = situation(a)
    count = sys.getrefcount(a)
    del kept
    return count - sys.getrefcount(torch.zeros(3))
