import sys

import torch


def count_of(thing):
    return sys.getrefcount(thing)


def added_references(situation):
    a = torch.randn(3)
    first = count_of(a)
    kept = [situation(a)]
    return count_of(a) - first + 0 * len(kept)
