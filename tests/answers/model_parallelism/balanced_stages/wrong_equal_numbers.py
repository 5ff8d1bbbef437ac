from torch import nn

REJECTED_WITH = "equal numbers of pieces are not equal costs"


def balance(costs, p):
    return [len(costs) // p + (i < len(costs) % p) for i in range(p)]


def make_stages(pieces, p):
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages
