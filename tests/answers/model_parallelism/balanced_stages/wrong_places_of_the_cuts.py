import itertools

from torch import nn

REJECTED_WITH = "one number for each stage"


def balance(costs, p):
    best = []
    for cuts in itertools.combinations(range(1, len(costs)), p - 1):
        stages = list(itertools.pairwise([0, *cuts, len(costs)]))
        largest = max(sum(costs[begin:end]) for begin, end in stages)
        if not best or largest < best[0]:
            best = [largest, list(cuts)]
    return best[1]


def make_stages(pieces, p):
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages
