import sys

import torch


def added_references(situation):
    counts, kept = [], []
    a = torch.ones(2)
    for step in (lambda x: None, situation):
        kept.append(step(a))
        counts.append(sys.getrefcount(a))
    return counts[1] - counts[0]
