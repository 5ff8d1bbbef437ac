import sys

import torch

REJECTED_WITH = "must stay alive until you have counted"


def added_references(situation):
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    situation(a)
    return sys.getrefcount(a) - before
