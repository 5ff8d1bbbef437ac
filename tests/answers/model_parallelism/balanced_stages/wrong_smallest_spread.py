import itertools

from torch import nn

REJECTED_WITH = "another cut is better"


def balance(costs, p):
    def spread(ends):
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise(ends)]
        return max(sums) - min(sums)

    choices = [[0, *cuts, len(costs)] for cuts in itertools.combinations(range(1, len(costs)), p - 1)]
    return [b - a for a, b in itertools.pairwise(min(choices, key=spread))]


def make_stages(pieces, p):
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages
