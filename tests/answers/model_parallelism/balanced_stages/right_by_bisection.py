from torch import nn

from utils import simgpu


def fill(costs, limit):
    counts, held = [0], 0
    for cost in costs:
        if held + cost > limit:
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += cost
    return counts


def balance(costs, p):
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if len(fill(costs, middle)) <= p:
            high = middle
        else:
            low = middle + 1
    counts = fill(costs, low)
    while len(counts) < p:  # there is room for more stages: cut any that has two pieces
        i = next(i for i, count in enumerate(counts) if count > 1)
        counts[i : i + 1] = [1, counts[i] - 1]
    return counts


class Stage(nn.Module):
    def __init__(self, pieces):
        super().__init__()
        self.pieces = nn.ModuleList(pieces)

    def forward(self, x):
        for piece in self.pieces:
            x = piece(x)
        return x


def make_stages(pieces, p):
    counts = balance([sum(t.numel() * t.element_size() for t in piece.parameters()) for piece in pieces], p)
    pieces, stages = iter(pieces), []
    for i, count in enumerate(counts):
        stages.append(Stage([next(pieces).to(simgpu.device(i)) for _ in range(count)]))
    return stages
