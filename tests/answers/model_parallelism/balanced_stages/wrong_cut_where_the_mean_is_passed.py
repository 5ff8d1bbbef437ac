from torch import nn

REJECTED_WITH = "another cut is better"


def balance(costs, p):
    counts, held = [0], 0
    for i, cost in enumerate(costs):
        full = held + cost > sum(costs) / p and counts[-1] > 0
        if (full and len(counts) < p) or len(costs) - i <= p - len(counts):
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += cost
    return counts


def make_stages(pieces, p):
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages
