import gc

import torch

REJECTED_WITH = "each holder once"


def added_references(situation):
    a = torch.zeros(3)
    before = len(gc.get_referrers(a))
    kept = situation(a)
    after = len(gc.get_referrers(a))
    del kept
    return after - before
