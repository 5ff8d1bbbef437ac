import itertools

from torch import nn

REJECTED_WITH = "the pieces must stay in their order"


def balance(costs, p):
    best = []
    for cuts in itertools.combinations(range(1, len(costs)), p - 1):
        stages = list(itertools.pairwise([0, *cuts, len(costs)]))
        largest = max(sum(costs[begin:end]) for begin, end in stages)
        if not best or largest < best[0]:
            best = [largest, [end - begin for begin, end in stages]]
    return best[1]


def make_stages(pieces, p):
    def nbytes(piece):
        return sum(parameter.nbytes for parameter in piece.parameters())

    parts = [[] for _ in range(p)]
    for piece in sorted(pieces, key=nbytes, reverse=True):
        min(parts, key=lambda part: sum(nbytes(one) for one in part)).append(piece)
    return [nn.Sequential(*part).to(f"simgpu:{i}") for i, part in enumerate(parts)]
