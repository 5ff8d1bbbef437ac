import itertools

from torch import nn

REJECTED_WITH = "another cut is better"


def balance(costs, p):
    sums = list(itertools.accumulate(costs))
    ends = [0]
    for i in range(1, p):
        places = range(ends[-1] + 1, len(costs) - (p - i) + 1)
        ends.append(min(places, key=lambda end: abs(sums[end - 1] - i * sums[-1] / p)))
    return [b - a for a, b in itertools.pairwise([*ends, len(costs)])]


def make_stages(pieces, p):
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages
